"""Snapshots that a run makes by itself: on its schedules, when it is suspended, at its end."""

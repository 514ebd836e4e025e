"""What to do next. Pure: a run, what was observed, and the time give actions and a status."""

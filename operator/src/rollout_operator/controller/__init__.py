"""The work queue, its workers and their back-off: knows keys, not what they name."""

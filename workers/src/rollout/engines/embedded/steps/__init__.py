"""Decode steps whose every size is fixed, so that a GPU can repeat them without the host."""

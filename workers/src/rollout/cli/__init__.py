"""The command line: one file per command group, nothing heavy imported before a command runs."""

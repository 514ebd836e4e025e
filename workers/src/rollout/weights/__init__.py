"""Weight versions: how they are named, written and read."""

"""Whether a plugin keeps its contract: checks over its socket, the same for every language."""

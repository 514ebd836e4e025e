"""A service's book as people read it: models, calls, steps and samples, live or afterwards. Nothing here writes to a book."""

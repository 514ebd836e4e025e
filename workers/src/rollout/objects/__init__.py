"""Content-addressed bytes: one contract, a folder now."""

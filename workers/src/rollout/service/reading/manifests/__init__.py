"""A loop that a service recorded, written as the manifest of a run: what can be, and in words what cannot."""

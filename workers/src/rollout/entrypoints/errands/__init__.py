"""Pods that are sent for one thing of a snapshot or of an endpoint's candidate, say what became of it, and end."""

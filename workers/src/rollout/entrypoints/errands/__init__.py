"""Pods that are sent for one thing of a snapshot, say what became of it, and end."""

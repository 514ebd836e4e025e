"""Sandboxes that are pods of a cluster: what runs in one, and how an actor speaks to it."""

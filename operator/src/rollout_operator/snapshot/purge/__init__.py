"""Removing a snapshot's bytes with its object: a finalizer, one Job in the object's namespace, and an end in any case."""

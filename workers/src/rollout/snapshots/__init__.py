"""Snapshots: one signed manifest over content-addressed layers, in any object store, readable by any installation."""

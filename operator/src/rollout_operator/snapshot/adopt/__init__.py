"""Giving a snapshot that lies in a store a name in the cluster: one Job reads it, and what it is becomes the status."""

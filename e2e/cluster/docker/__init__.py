"""Clusters whose nodes are containers of Docker."""

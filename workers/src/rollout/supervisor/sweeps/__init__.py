"""A sweep on this machine: its points, and the processes that run them."""

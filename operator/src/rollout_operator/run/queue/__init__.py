"""A run in a queue: what it asks for, and how its Workload is kept."""

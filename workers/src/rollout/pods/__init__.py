"""The roles of a run as pods in a cluster. The entry points are in ``rollout.entrypoints``."""

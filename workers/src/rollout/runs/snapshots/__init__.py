"""Snapshots of runs: made from a run's folder, found by their id, restored as a run, pruned."""

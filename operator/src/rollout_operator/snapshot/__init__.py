"""RolloutSnapshot: one snapshot of a run, asked of the run's coordinator and told in the object's status."""

"""Rules of a RolloutSweep."""

"""RolloutSweep: runs of one template, made, compared and stopped."""

"""What a call does to a model: the learner's forward, losses, adapter and optimizer, one call at a time."""

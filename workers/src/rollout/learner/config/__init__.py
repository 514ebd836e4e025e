"""What the learner is told, taken once from the worker configuration."""

"""The suites that rollout ships, by name: what each asks, and of which data. Nothing is read before it is needed."""

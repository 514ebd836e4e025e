"""Pages of a training service's models: how one stands, its calls, what was sampled from it."""

"""``rollout plugins``: begin a plugin, look at one, and hold it to its contract."""

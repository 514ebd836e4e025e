"""What a plugin in Python serves, by kind, beside rewards and environments (``rollout.plugins.serving``)."""

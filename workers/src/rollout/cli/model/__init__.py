"""``rollout model``: a run's weights as a folder of their own, and what such a folder is."""

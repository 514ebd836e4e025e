"""``rollout process``: programs that can be imaged while they run."""

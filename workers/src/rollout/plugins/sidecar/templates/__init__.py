"""Files that `rollout plugins new` writes."""

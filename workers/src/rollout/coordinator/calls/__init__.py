"""What the coordinator does for each call."""

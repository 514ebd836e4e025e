"""What the coordinator tells people, the operator and Prometheus of a run."""

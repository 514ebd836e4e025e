"""What must hold before a run's first pod. Pure."""

"""The embedded engine: generation inside the actor's own process."""

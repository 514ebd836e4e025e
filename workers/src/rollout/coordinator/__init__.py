"""The run's brain: which tasks exist, who holds each, what a step consumed. Never imports torch."""

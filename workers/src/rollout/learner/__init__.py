"""The learner: rows, loss, step, loop."""

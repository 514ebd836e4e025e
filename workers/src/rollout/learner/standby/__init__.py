"""A second learner that waits, in step with the first, to take its place."""

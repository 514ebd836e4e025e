"""Rules of what learns: batches, logprobs, and the algorithms."""

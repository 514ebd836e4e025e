"""Weights from GPU to GPU by vLLM's own backends, verified. Unproven: no device has run it."""

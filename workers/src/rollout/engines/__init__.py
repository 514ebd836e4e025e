"""Engines behind the `Engine` seam: the embedded one and vLLM."""

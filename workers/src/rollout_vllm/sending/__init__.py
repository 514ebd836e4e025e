"""The side that gives weights: files of them in memory, and vLLM's interface for whoever trains."""

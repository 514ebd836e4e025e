"""rollout: LLM post-training and inference."""

"""Policy objectives and what stands beside them: clipping, ratios, importance weights."""

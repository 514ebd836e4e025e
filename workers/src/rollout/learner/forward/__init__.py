"""The training forward: packed rows, prompts computed once, no logits where nothing is scored."""

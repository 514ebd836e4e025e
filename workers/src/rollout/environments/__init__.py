"""What the policy acts in. Knows messages and rows, nothing of tokens, models or rewards."""

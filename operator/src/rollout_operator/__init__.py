"""The rollout operator. Never imports torch."""

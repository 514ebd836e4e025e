"""The reward of the GRPO benchmarks: no two groups without a spread, and nothing to compute."""

from __future__ import annotations


def even(prompts, completions, rows):
    """The share of even token ids, as ``rollout`` calls it."""
    return [share(completion.token_ids) for completion in completions]


def share(token_ids) -> float:
    """The share of even token ids."""
    return sum(token % 2 == 0 for token in token_ids) / len(token_ids)

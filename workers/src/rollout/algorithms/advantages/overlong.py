"""DAPO's soft penalty for completions near the token limit.

    penalty(n) = 0                                   for n <= limit - buffer
               = penalty * (n - (limit - buffer)) / buffer   up to n = limit

taken from the reward before advantages; it never counts for evaluations, nor for whether a group has
any variance when groups without it are dropped (DAPO compares correctness there).

Source: DAPO (arXiv 2503.14476) eq. 13: limit 20480, buffer 4096, penalty 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongPenalty:
    """Lengths in tokens that the policy sampled; 0 < ``buffer`` < ``limit``."""

    limit: int
    """Tokens at which the whole penalty is taken: the completion limit (``L_max``)."""
    buffer: int
    """Tokens before the limit over which it grows from 0 (``L_cache``)."""
    penalty: float = 1.0
    """Most that is taken, in units of the reward, >= 0."""

    def __call__(self, length: int) -> float:
        """What is taken from the reward of a completion of ``length`` tokens, >= 0."""
        beyond = length - (self.limit - self.buffer)
        return self.penalty * min(max(beyond, 0) / self.buffer, 1.0)

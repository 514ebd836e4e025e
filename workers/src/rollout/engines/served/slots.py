"""How many requests a gateway gives a server at a time: what it decodes together, and few more, so that no step waits for one."""

from __future__ import annotations

QUEUE_SHARE = 10
"""One request waits in the engine for so many that run: more would wait where they cannot be ordered."""


def count_slots(num_seqs: int) -> int:
    """Of a server that decodes ``num_seqs`` sequences together."""
    return num_seqs + max(1, num_seqs // QUEUE_SHARE)

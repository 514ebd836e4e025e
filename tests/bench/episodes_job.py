"""The job of ``bench_episodes`` against ``verifiers``: episodes of eight turns, and the numbers that both sides share.

Standard library alone: the other side runs with its own packages.
"""

from __future__ import annotations

TURNS = 8
EPISODES = 64
"""Of one turn of the duel; all in flight at once."""
GROUP = 8
REPLY_TOKENS = 64
QUESTION = (
    "You are in a house. Find the key, take it to the door, and say what you do in one sentence."
)


def observation(turn: int) -> str:
    """What the environment says to the reply of a turn, from 0."""
    return f"Turn {turn}: the room has two doors, a table and a lamp; you have looked at {turn} of 8 rooms."


def reply_ids() -> list[int]:
    """What the server samples, every time."""
    return [40 + place % 80 for place in range(REPLY_TOKENS)]

"""How much memory mirrors may take. Loads nothing: a plan asks, too."""

SHARE_MAX = 0.5
"""Of the memory that is free: the rest is for what a step needs."""


def has_room(size_bytes: int, free_bytes: int) -> bool:
    """Whether mirrors of this size, together, may lie in memory of which so much is free."""
    return size_bytes <= SHARE_MAX * free_bytes

"""A keyed permutation of ``range(size)`` that needs no memory and no history.

A Feistel network over the next even power of two, walked until it falls inside the range: position p
of any epoch costs the same at step 1 and after a restart. Not a cipher: it only has to look shuffled.
"""

from __future__ import annotations

from rollout.seeds import derive_seed

ROUNDS = 6
_MASK = (1 << 64) - 1


def permute(index: int, size: int, key: int) -> int:
    """Where ``index`` goes, a bijection of ``range(size)`` for every 63-bit ``key``.

    Raises ValueError when ``index`` lies outside.
    """
    if not 0 <= index < size:
        raise ValueError(f"index {index} outside range({size})")
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    value = index
    while True:  # fewer than 4 turns on average: the domain is under 4 times the range
        value = _feistel(value, half_bits, key)
        if value < size:
            return value


def shuffle_key(seed: int, epoch: int, block: int = 0) -> int:
    """The key of one epoch's order (and of one block of it, for streams)."""
    return derive_seed(seed, "shuffle", epoch, block)


def _feistel(value: int, half_bits: int, key: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for turn in range(ROUNDS):
        left, right = right, left ^ (_mix(right + 1, key + turn * 0x9E3779B97F4A7C15) & mask)
    return left << half_bits | right


def _mix(value: int, key: int) -> int:
    """splitmix64's finaliser over value and key."""
    mixed = (value * 0xBF58476D1CE4E5B9 ^ key) & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31

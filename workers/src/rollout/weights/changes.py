"""Which elements of a tensor changed, by their raw bits, and what they are now.

Bits, not numbers: -0.0 is not 0.0, and a NaN with another payload is another value. Positions are kept
as the number of unchanged elements before each change, which is what compresses best.

Axes: N elements of a tensor, K changed ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 8
CHUNK_WORDS = 1 << 16
"""512 KiB of each side: what is compared stays in the processor's cache for the second look."""
ELEMENTS_MAX = 1 << 32
"""Gaps are 32 bits; a larger tensor is never sparse."""

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Raw elements by their size in bytes."""

Bits = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """``gaps_K`` (uint32): unchanged elements before each change. ``values_K``: the new raw elements."""

    gaps_K: NDArray[np.uint32]
    values_K: Bits


def find_changes(old_N: Bits, new_N: Bits, *, density_max: float) -> Changes | None:
    """What turns ``old_N`` into ``new_N``, raw elements of equal size; None when more than the share changed."""
    num_max = int(density_max * new_N.size)
    if new_N.size >= ELEMENTS_MAX:
        return None
    places: list[NDArray[np.int64]] = [np.array([-1])]
    values: list[Bits] = [np.empty(0, new_N.dtype)]
    num = 0
    for positions, now in _find(old_N, new_N):
        num += positions.size
        if num > num_max:
            return None
        places.append(positions)
        values.append(now)
    gaps_K = np.diff(np.concatenate(places))
    gaps_K -= 1
    return Changes(gaps_K=gaps_K.astype(np.uint32), values_K=np.concatenate(values))


def positions_of(gaps_K: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Where the changes are, ascending."""
    positions = np.cumsum(gaps_K, dtype=np.int64)
    positions += np.arange(gaps_K.size)
    return positions


def _find(old_N: Bits, new_N: Bits) -> Iterator[tuple[NDArray[np.int64], Bits]]:
    """Changed positions and their new elements, a chunk at a time; chunks without any are left out.

    Eight bytes are compared at once; only words that differ are looked into.
    """
    shift = (WORD_BYTES // new_N.itemsize).bit_length() - 1
    whole = new_N.size >> shift << shift
    old_words = old_N[:whole].view(np.uint64)
    new_words = new_N[:whole].view(np.uint64)
    differ = np.empty(CHUNK_WORDS, bool)
    for start in range(0, new_words.size, CHUNK_WORDS):
        old_part, new_part = (side[start : start + CHUNK_WORDS] for side in (old_words, new_words))
        words = np.flatnonzero(np.not_equal(old_part, new_part, out=differ[: old_part.size]))
        if words.size:
            now = new_part[words].view(new_N.dtype)
            lanes = np.flatnonzero(old_part[words].view(old_N.dtype) != now)
            words += start
            yield (words[lanes >> shift] << shift) + (lanes & ((1 << shift) - 1)), now[lanes]
    rest = np.flatnonzero(old_N[whole:] != new_N[whole:])
    if rest.size:
        yield rest + whole, new_N[whole:][rest]

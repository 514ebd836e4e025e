"""How sequences share rows (micro-batches) and rows share ranks: pure arithmetic on lengths.

Deterministic (ties by position), returned as tuples of positions, so a plan can be recorded with the
step that used it and replayed. Nothing is dropped: every position appears exactly once. A bound in
tokens is a target for memory, never a reason to lose a sample: what is too long by itself goes alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

Positions = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some samples of one group, which share its prompt: ``group`` and ``samples`` are positions.

    Where a sample has several rows, ``samples`` are positions of rows (``completions.RowPlace``).
    """

    group: int
    samples: Positions


def pack_rows(lengths: Sequence[int], tokens_max: int) -> tuple[Positions, ...]:
    """Best-fit decreasing: each item, longest first, goes to the fullest row that still holds it.

    Rows come in the order they were opened, positions in a row in ascending order. At most 11/9 of
    the fewest possible rows, plus one. An item longer than ``tokens_max`` gets a row of its own.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), ascending: bisect finds the best fit
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        need = lengths[position]
        slot = bisect_left(free, (need, -1))
        left, row = free.pop(slot) if slot < len(free) else (tokens_max, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(position)
        insort(free, (left - need, row))
    return tuple(tuple(sorted(row)) for row in rows)


def split_group(
    group: int, prompt_tokens: int, completion_tokens: Sequence[int], tokens_max: int
) -> tuple[Chunk, ...]:
    """Cut a group so that prompt + completions of each chunk stay within ``tokens_max``.

    A group that fits stays whole.
    """
    rows = pack_rows(completion_tokens, tokens_max - prompt_tokens)
    return tuple(Chunk(group=group, samples=samples) for samples in sorted(rows))


def share_among_ranks(lengths: Sequence[int], num_ranks: int) -> tuple[Positions, ...]:
    """Positions for each rank, tokens balanced: longest first, to the rank with the least so far."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min(range(num_ranks), key=lambda r: (load[r], r))
        shares[rank].append(position)
        load[rank] += lengths[position]
    return tuple(tuple(sorted(share)) for share in shares)

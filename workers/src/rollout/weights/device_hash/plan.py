"""Where the bytes of messages are put to be hashed: slots of chunks, groups of 64, and tiles to copy. Plain numbers.

A message of n nodes takes ``ceil(n / 64)`` groups of its own, one at least, so that pairs of nodes lie side by side at
every level within a group; what comes out of the groups is laid out so again, until each message is one node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

CHUNK_BYTES, BLOCK_BYTES = 1024, 64
GROUP_NODES = 64
GROUP_BYTES = CHUNK_BYTES * GROUP_NODES

Numbers = np.ndarray
"""int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Of every group: its first node's number in its message, and how many nodes the message has.

    ``first`` [M] is each message's first group.
    """

    base: Numbers
    total: Numbers
    first: Numbers

    @property
    def count(self) -> int:
        """Groups of all messages."""
        return len(self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Bytes that lie side by side: ``address`` in memory, and how many."""

    address: int
    size_bytes: int


def plan_groups(num_nodes: Numbers) -> Groups:
    """Groups of messages with so many nodes, one at least."""
    counts = -(-num_nodes // GROUP_NODES)
    first = np.cumsum(counts) - counts
    base = (np.arange(counts.sum()) - np.repeat(first, counts)) * GROUP_NODES
    return Groups(base=base, total=np.repeat(num_nodes, counts), first=first)


def count_chunks(sizes: Numbers) -> Numbers:
    """Chunks of messages of so many bytes: an empty one has one, too."""
    return np.maximum(-(-sizes // CHUNK_BYTES), 1)


def plan_levels(num_nodes: Numbers) -> Iterator[tuple[Groups, Numbers]]:
    """What follows the groups of ``num_nodes``: groups of what comes out of them, and where each of those goes.

    The second is, for every group before, the number of its node's place; over when each message is one node.
    """
    nodes = -(-num_nodes // GROUP_NODES)
    while nodes.max(initial=1) > 1:
        groups = plan_groups(nodes)
        start = np.cumsum(nodes) - nodes
        within = np.arange(nodes.sum()) - np.repeat(start, nodes)
        yield groups, np.repeat(groups.first * GROUP_NODES, nodes) + within
        nodes = -(-nodes // GROUP_NODES)


def plan_tiles(messages: Sequence[Sequence[ByteRange]], first: Numbers, zeros: int) -> Numbers:
    """Rows (address, target byte, size) that lay every message from its first group on, sorted by target.

    No row crosses a group. The last block of a message is filled up with the bytes at ``zeros`` (64 of them).
    """
    rows = [
        row
        for pieces, group in zip(messages, first.tolist(), strict=True)
        for row in _lay(pieces, group * GROUP_BYTES, zeros)
    ]
    address, target, size = np.array(rows, np.int64).reshape(-1, 3).T
    before = target // GROUP_BYTES
    counts = (target + size - 1) // GROUP_BYTES - before + 1
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    edge = (np.repeat(before, counts) + within) * GROUP_BYTES
    starts, stops = np.repeat(target, counts), np.repeat(target + size, counts)
    begin = np.maximum(starts, edge)
    source = np.repeat(address, counts) + begin - starts
    return np.stack((source, begin, np.minimum(stops, edge + GROUP_BYTES) - begin), axis=1)


def _lay(pieces: Sequence[ByteRange], at: int, zeros: int) -> Iterator[tuple[int, int, int]]:
    start = at
    for piece in pieces:
        if piece.size_bytes:
            yield piece.address, at, piece.size_bytes
            at += piece.size_bytes
    if at == start or at % BLOCK_BYTES:
        yield zeros, at, BLOCK_BYTES - at % BLOCK_BYTES

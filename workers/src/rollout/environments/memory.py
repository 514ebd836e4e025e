"""What an environment keeps between episodes, as one episode has it: read as of its policy's version, its own writes on top.

Nothing is asked of anybody: the entries are given, and the writes are taken along with the sample. Searching compares
with every vector, so that equal memories give equal answers in one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rollout.errors import MemoryRefused
from rollout.memory import (
    NOTHING,
    WRITES_MAX,
    Keyed,
    MemoryWrite,
    check_key,
    decode_value,
    encode_value,
    encode_vector,
)
from rollout.seams import Env, EnvBuilder, Memory, MemoryHit
from rollout.types import Row

USES_MEMORY = "uses_memory"
"""The attribute by which an environment declares that it wants memory."""


class EpisodeMemory:
    """The memory of one episode (``seams.Memory``). Without ``entries`` nothing was there before it."""

    def __init__(self, entries: Mapping[str, Keyed] | None = None) -> None:
        self._entries = entries or {}
        self._writes: dict[str, MemoryWrite] = {}
        self._is_over = False

    def get(self, key: str) -> Any | None:
        """See the seam."""
        found = self._writes.get(key) or self._entries.get(key)
        return None if found is None else decode_value(found.value)

    def put(self, key: str, value: Any, vector: Sequence[float] | None = None) -> None:
        """See the seam."""
        if self._is_over:
            raise MemoryRefused(f"key {key!r:.80} is written after the end of the episode")
        check_key(key)
        if key not in self._writes and len(self._writes) >= WRITES_MAX:
            raise MemoryRefused(f"key {key!r:.80}: an episode writes {WRITES_MAX} keys at most")
        packed = b"" if vector is None or value is None else encode_vector(vector)
        self._writes[key] = MemoryWrite(key=key, value=encode_value(value), vector=packed)

    def written(self, key: str) -> MemoryWrite | None:
        """What this episode wrote last under a key; None where it did not."""
        return self._writes.get(key)

    def search(self, vector: Sequence[float], k: int = 8) -> tuple[MemoryHit, ...]:
        """See the seam."""
        if k < 1:
            raise MemoryRefused(f"search for {k} entries: expected 1 or more")
        asked = encode_vector(vector)
        entries: dict[str, Keyed] = {**self._entries, **self._writes}
        found = [
            one
            for one in entries.values()
            if len(one.vector) == len(asked) and one.value != NOTHING
        ]
        scores = find_cosines([one.vector for one in found], asked)
        best = sorted(zip(scores, found, strict=True), key=lambda one: (-one[0], one[1].key))[:k]
        return tuple(
            MemoryHit(key=one.key, value=decode_value(one.value), score=score)
            for score, one in best
        )

    def finish(self) -> tuple[MemoryWrite, ...]:
        """What the episode wrote, by key; nothing is written any more."""
        self._is_over = True
        return tuple(self._writes[key] for key in sorted(self._writes))


def find_cosines(vectors: Sequence[bytes], asked: bytes) -> list[float]:
    """Cosines of packed vectors with another of the same length, without a matrix library's choice of order."""
    if not vectors:
        return []
    import numpy as np

    rows_ND = np.frombuffer(b"".join(vectors), dtype="<f8").reshape(len(vectors), -1)
    asked_D = np.frombuffer(asked, dtype="<f8")
    # Scaled first: squares of the largest and the smallest numbers are no numbers.
    rows_ND = rows_ND / np.abs(rows_ND).max(axis=1, keepdims=True)
    asked_D = asked_D / np.abs(asked_D).max()
    norms_N = np.sqrt((rows_ND * rows_ND).sum(axis=1) * (asked_D * asked_D).sum())
    return ((rows_ND * asked_D).sum(axis=1) / norms_N).tolist()


@runtime_checkable
class RememberingBuilder(Protocol):
    """An EnvBuilder whose episodes may be given memory."""

    async def asks_memory(self) -> bool:
        """Whether they want it; a program may have to be started that says so. Raises as an episode's start."""
        ...

    def build_with_memory(self, row: Row, memory: Memory) -> Env:
        """As ``build``."""
        ...


async def wants_memory(builder: EnvBuilder) -> bool:
    """Whether a builder's episodes declare that they want memory."""
    return isinstance(builder, RememberingBuilder) and await builder.asks_memory()


def build_episode(builder: EnvBuilder, row: Row, memory: Memory | None) -> Env:
    """The episode of one row, with memory where there is some."""
    if memory is None or not isinstance(builder, RememberingBuilder):
        return builder.build(row)
    return builder.build_with_memory(row, memory)

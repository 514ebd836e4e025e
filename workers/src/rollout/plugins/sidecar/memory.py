"""The memory of one episode, as a plugin reads and writes it: what it asks is bounded, and what it writes held to every limit.

Nothing of another episode, version or run can be asked for: a read names a key or a vector, and is answered from the
entries that this episode was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from rollout.errors import MemoryRefused, PluginError
from rollout.memory import (
    ENTRIES_MAX,
    VALUE_BYTES_MAX,
    WRITES_MAX,
    MemoryWrite,
    decode_vector,
    encode_value,
)
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.seams import Memory, MemoryHit

READS_MAX = 16
"""Of one answer."""
FOUND_MAX = ENTRIES_MAX + WRITES_MAX
"""Entries that the reads of one answer may find together: all that an episode can see."""
ASKS_MAX = 16_384
"""Answers of one episode that are reads."""
VALUE_CHARACTERS_MAX = 4 * VALUE_BYTES_MAX
"""JSON of one value, as a plugin may write it."""


class MemoryDesk:
    """Of one episode: takes what its plugin writes, and finds what it reads."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._num_asks = 0

    def take(self, turn: contract.Turn, *, uses_memory: bool) -> bool:
        """Take the writes of an answer; whether it is one that reads. Raises PluginError for what is past a limit."""
        reads = turn.WhichOneof("outcome") == "reads"
        if not uses_memory and (reads or turn.writes):
            raise PluginError(
                "it reads or writes memory, and did not say that it uses it when it was configured"
            )
        if len(turn.writes) > WRITES_MAX:
            raise PluginError(
                f"{len(turn.writes)} writes into memory, at most {WRITES_MAX} are taken"
            )
        if turn.WhichOneof("outcome") != "failure":
            for write in turn.writes:
                self._put(write)
        if reads:
            self._require_bounded(turn.reads)
        return reads

    def find(self, reads: contract.MemoryReads) -> list[contract.MemoryFound]:
        """What each read finds. Raises PluginError for a search for no vector."""
        return [contract.MemoryFound(hits=self._hits(one)) for one in reads.reads]

    def _put(self, write: contract.MemoryWrite) -> None:
        if len(write.value_json) > VALUE_CHARACTERS_MAX:
            raise PluginError(
                f"a write into memory has a value of {len(write.value_json)} characters, at most"
                f" {VALUE_CHARACTERS_MAX} are read"
            )
        try:
            value = json.loads(write.value_json)
        except (ValueError, RecursionError) as error:
            raise PluginError(
                f"a write into memory has a value that is no JSON: {error}"
            ) from error
        try:
            self._memory.put(write.key, value, write.vector or None)
        except MemoryRefused as error:
            raise PluginError(f"a write into memory: {error}") from error

    def _require_bounded(self, reads: contract.MemoryReads) -> None:
        self._num_asks += 1
        if self._num_asks > ASKS_MAX:
            raise PluginError(f"it reads memory more than {ASKS_MAX} times in one episode")
        if not 1 <= len(reads.reads) <= READS_MAX:
            raise PluginError(
                f"{len(reads.reads)} reads of memory at once, expected 1 to {READS_MAX}"
            )
        found = sum(_most(one) for one in reads.reads)
        if found > FOUND_MAX:
            raise PluginError(
                f"reads of memory that may find {found} entries, at most {FOUND_MAX} are told at once"
            )

    def _hits(self, read: contract.MemoryRead) -> list[contract.MemoryHit]:
        if read.WhichOneof("kind") == "key":
            value = self._memory.get(read.key)
            if value is None:
                return []
            return [contract.MemoryHit(key=read.key, value_json=encode_value(value))]
        try:
            hits = self._memory.search(read.search.vector, read.search.k)
        except MemoryRefused as error:
            raise PluginError(f"a read of memory: {error}") from error
        return [
            contract.MemoryHit(key=one.key, value_json=encode_value(one.value), score=one.score)
            for one in hits
        ]


def _most(read: contract.MemoryRead) -> int:
    """How many entries a read may find. Raises PluginError for one of no kind."""
    kind = read.WhichOneof("kind")
    if kind is None:
        raise PluginError("a read of memory names no key and no vector")
    return 1 if kind == "key" else read.search.k


def told_writes(writes: Iterable[MemoryWrite]) -> list[contract.MemoryWrite]:
    """Writes, as a plugin in Python tells them."""
    return [
        contract.MemoryWrite(key=one.key, value_json=one.value, vector=decode_vector(one.vector))
        for one in writes
    ]


def heard_hits(found: contract.MemoryFound) -> tuple[MemoryHit, ...]:
    """What a read found, as a plugin in Python hears it."""
    return tuple(
        MemoryHit(key=one.key, value=json.loads(one.value_json), score=one.score)
        for one in found.hits
    )

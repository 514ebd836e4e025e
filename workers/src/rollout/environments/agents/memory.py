"""What an agent reads and writes of its run's memory, by the endpoint of its episode: ``POST /v1/memory/get``, ``put``, ``search``.

Pure. An agent passes on what its policy says, so that what memory does not take is told to it, and no failure.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from rollout.environments.agents.asks import AskRefused
from rollout.errors import MemoryRefused
from rollout.memory import DIMENSION_MAX, ENTRIES_MAX
from rollout.seams import Memory

PATH = "/v1/memory/{what}"
Vector = Annotated[list[float], msgspec.Meta(max_length=DIMENSION_MAX)]


class _Get(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str


class _Put(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: Any
    vector: Vector | None = None


class _Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vector: Vector
    k: Annotated[int, msgspec.Meta(ge=1, le=ENTRIES_MAX)] = 8


_ASKS: dict[str, type[_Get | _Put | _Search]] = {"get": _Get, "put": _Put, "search": _Search}


def answer_memory(memory: Memory, what: str, body: bytes) -> bytes:
    """The body of an answer. Raises AskRefused."""
    if what not in _ASKS:
        raise AskRefused(404, f"memory has {', '.join(_ASKS)}, got {what[:80]}")
    try:
        ask = msgspec.json.decode(body, type=_ASKS[what])
        return json.dumps(_answer(memory, ask)).encode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AskRefused(400, f"memory/{what}: {str(error)[:200]}") from error
    except MemoryRefused as error:
        raise AskRefused(400, f"memory/{what}: {error}") from error


def _answer(memory: Memory, ask: _Get | _Put | _Search) -> dict[str, Any]:
    if isinstance(ask, _Get):
        return {"value": memory.get(ask.key)}
    if isinstance(ask, _Put):
        memory.put(ask.key, ask.value, ask.vector)
        return {}
    hits = memory.search(ask.vector, ask.k)
    return {"hits": [{"key": hit.key, "value": hit.value, "score": hit.score} for hit in hits]}

"""Putting a vLLM server to sleep and waking it: which of its routes are asked in which order, and what proves the weights.

Level 1: weights are copied to host memory, and are those of before where each worker says the same checksums again.
Level 2: weights are forgotten; only their memory is had again, and a version is loaded into it whole, by its digest, before
the cache comes back. While it sleeps, and until its weights are proven, the server's gate lets nobody sample.
vLLM 0.32's routes (``vllm/entrypoints/serve/dev/sleep``); its build for CPUs has no sleep mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.engines.vllm.command import SleepLevel
from rollout.engines.vllm.server import VllmServer
from rollout.errors import EngineError

SLEEP_SECONDS_MAX = 300.0
"""For all weights to cross to the host, or back."""
CHECKSUMS = {"method": "compute_weight_checksums"}


class _Woken(msgspec.Struct, frozen=True):
    status: str


class _Checksums(msgspec.Struct, frozen=True):
    results: list[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asleep:
    """A server that sleeps; ``checksums`` of its weights by worker and name at level 1, () at level 2."""

    level: SleepLevel
    checksums: tuple[dict[str, str], ...] = ()


async def put_to_sleep(server: VllmServer, level: SleepLevel) -> Asleep:
    """Have the server give its device's memory away; ``level`` is 1 or 2. Raises EngineError; it is then not to be used."""
    checksums = await _ask_checksums(server) if level == 1 else ()
    parameters = {"level": str(level), "mode": "abort"}
    await server.call("/sleep", parameters=parameters, seconds_max=SLEEP_SECONDS_MAX)
    return Asleep(level=level, checksums=checksums)


async def wake_weights(server: VllmServer, asleep: Asleep) -> bool:
    """Give the weights their memory back; whether they are those of before. Raises EngineError.

    At level 1 the cache is back with them. At level 2 it is not (``wake_cache``), and nothing is scheduled yet.
    """
    if asleep.level == 2:
        await _wake(server, tags="weights", wanted="sleeping")
        return False
    await _wake(server, tags=None, wanted="awake")
    return await _ask_checksums(server) == asleep.checksums


async def wake_cache(server: VllmServer) -> None:
    """Give the cache its memory back, behind the weights, and go on. Raises EngineError."""
    await _wake(server, tags="kv_cache", wanted="awake")


async def _wake(server: VllmServer, *, tags: str | None, wanted: str) -> None:
    parameters = None if tags is None else {"tags": tags}
    answer = await server.call("/wake_up", parameters=parameters, seconds_max=SLEEP_SECONDS_MAX)
    try:
        status = msgspec.json.decode(answer, type=_Woken).status
    except UNREADABLE as error:
        raise EngineError(f"vLLM's answer to waking up is not understood: {error}") from error
    if status != wanted:
        raise EngineError(f"vLLM is {status!r} after waking {tags or 'up'}, expected {wanted!r}")


async def _ask_checksums(server: VllmServer) -> tuple[dict[str, str], ...]:
    answer = await server.call("/collective_rpc", body=CHECKSUMS, seconds_max=SLEEP_SECONDS_MAX)
    try:
        found = tuple(msgspec.json.decode(answer, type=_Checksums).results)
    except UNREADABLE as error:
        raise EngineError(f"vLLM's checksums are not understood: {error}") from error
    if not found or not all(found):
        raise EngineError("vLLM named no checksums of its weights")
    return found

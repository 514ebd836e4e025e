"""The facts of runs, as a plugin in Python is told them: one call at a time, in a thread, in the order in which they came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import Message as Frame

from rollout.plugins.served.answers import Methods, told_failure
from rollout.plugins.sidecar.contract import plugin_pb2 as contract


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEnd:
    """How an attempt of a run has ended: ``kind`` is ``Succeeded``, ``Failed`` or ``Stopped``."""

    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedFact:
    """The metrics of a step, or an end. What comes again has the ``id`` that it had.

    ``run`` is the run's name, ``uid`` what is its alone. ``metrics`` is empty for an end, ``end`` None for a step.
    """

    id: str
    run: str
    uid: str
    lineage: int
    step: int
    metrics: Mapping[str, Any]
    end: FactEnd | None


class TrackerService:
    """A function over facts, or a class with ``track(facts)`` that is constructed with the parameters."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._track: Callable[[Sequence[TrackedFact]], Any] = tracker
        self._turn = asyncio.Lock()

    @property
    def methods(self) -> Methods:
        """What is served."""
        return {"Track": (self._answer, contract.TrackRequest)}

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Build it."""
        if isinstance(self._tracker, type):
            self._track = self._tracker(**parameters).track
        else:
            self._track = partial(self._tracker, **parameters)

    async def _answer(self, request: contract.TrackRequest) -> Frame:
        async with self._turn:
            # Not given up with its call: the next one begins when this one has ended.
            work = asyncio.ensure_future(asyncio.to_thread(self._track_all, request))
            return await _finished(work)

    def _track_all(self, request: contract.TrackRequest) -> Frame:
        try:
            self._track([_heard_fact(request, one) for one in request.facts])
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything: it is the answer
            return contract.TrackResponse(failure=told_failure(error))
        return contract.TrackResponse()


async def _finished(work: asyncio.Future[Frame]) -> Frame:
    """What it gives, once it has ended, also where whoever asked has gone meanwhile."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _heard_fact(request: contract.TrackRequest, fact: contract.Fact) -> TrackedFact:
    end = None
    if fact.HasField("end"):
        end = FactEnd(kind=fact.end.kind, reason=fact.end.reason, message=fact.end.message)
    return TrackedFact(
        id=fact.id,
        run=request.run_name,
        uid=request.run_uid,
        lineage=fact.lineage,
        step=fact.step,
        metrics=json.loads(fact.metrics_json or "{}"),
        end=end,
    )

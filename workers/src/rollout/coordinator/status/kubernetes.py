"""Writes ``status.progress`` of the run's object: ours alone, by server-side apply, at a bounded rate.

What an operator must act on (how the run ended, the learner's group, a condition that turned) is written
at once; everything else at the interval that the operator sends, so that thousands of runs never flood
the API server. Nothing depends on it being written: a refusal is logged once and tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

import aiohttp
import msgspec
from blake3 import blake3

from rollout.common.bounded import UNREADABLE
from rollout.coordinator.context import RunContext, wait_for
from rollout.coordinator.status.api_server import TROUBLES, ApiServer
from rollout.coordinator.status.progress import describe_progress, stamp
from rollout_api import API_VERSION
from rollout_api.names import MANAGER_PROGRESS
from rollout_api.v1alpha1.run_status import Progress
from rollout_api.worker import ProgressWriting, RunIdentity

log = logging.getLogger(__name__)

AT_ONCE_SECONDS = 1.0
"""The least time between two writes, however urgent."""
FAILED_FIRST_SECONDS, FAILED_MAX_SECONDS = 2.0, 60.0


class Unwritten(Exception):  # noqa: N818 - a state, logged and tried again
    """The API server did not take it. ``again_seconds``: when to come back, if it said so."""

    def __init__(self, reason: str, again_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.again_seconds = again_seconds


class StatusWriter(Protocol):
    """Somewhere to write progress to."""

    async def write(self, progress: Progress) -> None:
        """Write once. Raises Unwritten."""
        ...


class ApiWriter:
    """The API server of the cluster, by the coordinator's own account."""

    def __init__(self, wanted: ProgressWriting, run: RunIdentity) -> None:
        self._server, self._run = ApiServer(wanted), run
        self._url = (
            f"{self._server.url}/apis/{API_VERSION}/namespaces/{run.namespace}"
            f"/rolloutruns/{run.name}/status?fieldManager={MANAGER_PROGRESS}&force=true"
        )

    async def write(self, progress: Progress) -> None:
        """Apply one struct to this very object, never to a namesake that was made later.

        Server-side apply on a subresource heeds no UID, so a dry run tells whose object it would be, and
        the write itself is bound to what was seen by its resource version.
        """
        try:
            async with self._server.session("application/apply-patch+yaml") as session:
                seen = await self.apply(session, build_patch(self._run, progress), dry=True)
                if seen.metadata.uid != self._run.uid:
                    raise Unwritten(f"{self._run.name} is another run of this name by now")
                version = seen.metadata.resource_version
                await self.apply(session, build_patch(self._run, progress, version), dry=False)
        except TROUBLES as error:
            raise Unwritten(f"{type(error).__name__}: {error}") from error

    async def apply(self, session: aiohttp.ClientSession, body: bytes, *, dry: bool) -> Applied:
        """Apply, or say what would come of it. Raises Unwritten and what a connection raises."""
        url = f"{self._url}&dryRun=All" if dry else self._url
        async with session.patch(url, data=body) as answer:
            said = await answer.read()
            if answer.status != HTTPStatus.OK:
                again = answer.headers.get("Retry-After", "")
                raise Unwritten(
                    f"HTTP {answer.status}: {said[:300].decode(errors='replace')}",
                    float(again) if again.isdigit() else None,
                )
        try:
            return msgspec.json.decode(said, type=Applied)
        except UNREADABLE as error:
            raise Unwritten(f"the API server answered with no object: {error}") from error


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    resource_version: str


class Applied(msgspec.Struct, frozen=True):
    """Of the object that came of it: whose it is and how new."""

    metadata: _Metadata


def build_patch(run: RunIdentity, progress: Progress, version: str = "") -> bytes:
    """The object as server-side apply wants it (JSON is YAML); refused when it is not at ``version`` any more."""
    metadata = {"name": run.name, "namespace": run.namespace}
    return msgspec.json.encode(
        {
            "apiVersion": API_VERSION,
            "kind": "RolloutRun",
            "metadata": {**metadata, **({"resourceVersion": version} if version else {})},
            "status": {"progress": progress.model_dump(mode="json", exclude_none=True)},
        }
    )


@dataclass(slots=True, kw_only=True)
class Poster:
    """Decides when to write what. ``every_seconds`` holds until live settings say otherwise.

    ``spread`` stretches the interval a little, another for each run: what began together does not stay so.
    """

    writer: StatusWriter
    every_seconds: float
    spread: float = 1.0
    _written: Progress | None = None
    _next_at: float = field(default=0.0)
    _next_urgent_at: float = field(default=0.0)
    _failures: int = 0

    async def post(self, run: RunContext) -> None:
        """Write for ever."""
        while True:
            ticket = run.changed.ticket()
            wait = await self.look(run)
            await wait_for(ticket, wait)

    async def look(self, run: RunContext) -> float:
        """Write if it is time to; seconds until it may be."""
        now, progress = run.clock(), describe_progress(run)
        urgent = self._written is None or _urgent(progress) != _urgent(self._written)
        due = self._next_urgent_at if urgent else self._next_at
        if now < due:
            return due - now
        if progress != self._written:
            await self._write(run, progress)
        else:
            self._next_at = now + self._interval(run)
        return max(AT_ONCE_SECONDS, min(self._next_at - run.clock(), self._interval(run)))

    async def _write(self, run: RunContext, progress: Progress) -> None:
        try:
            await self.writer.write(stamp(progress))
        except Unwritten as error:
            self._failures += 1
            pause = min(FAILED_FIRST_SECONDS * 2**self._failures, FAILED_MAX_SECONDS)
            pause = max(pause, error.again_seconds or 0.0)
            if self._failures == 1:
                log.warning("progress is not written, trying again reason=%s", error)
            self._next_at = self._next_urgent_at = run.clock() + pause
            return
        self._failures, self._written = 0, progress
        self._next_at = run.clock() + self._interval(run)
        self._next_urgent_at = run.clock() + AT_ONCE_SECONDS

    def _interval(self, run: RunContext) -> float:
        return (run.live.progress_seconds or self.every_seconds) * self.spread


def _urgent(progress: Progress) -> tuple[object, ...]:
    group = progress.group
    return (
        progress.outcome,
        progress.stuck,
        None if group is None else (group.incarnation, group.stage),
        tuple((one.type, one.status) for one in progress.conditions),
    )


def build_duties(
    wanted: ProgressWriting | None, run: RunIdentity
) -> tuple[Callable[[RunContext], Coroutine[None, None, None]], ...]:
    """What a coordinator does beside its service: nothing where nobody asked for it."""
    if wanted is None:
        return ()
    poster = Poster(
        writer=ApiWriter(wanted, run),
        every_seconds=wanted.every_seconds,
        spread=spread_of(run.uid),
    )
    return (poster.post,)


def spread_of(uid: str) -> float:
    """From 1.0 to 1.25, by the run's UID."""
    return 1.0 + blake3(uid.encode()).digest()[0] / 1020

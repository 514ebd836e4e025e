"""The coordinator itself: desks behind one table of calls, the same over HTTP and inside a test.

``open_coordinator`` rebuilds the picture from the ledger, gives every lease one more term, and goes on
exactly where the last acknowledged write left off. ``handle`` answers one call.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rollout.coordinator import actors, commits, learner
from rollout.coordinator import messages as m
from rollout.coordinator.endpoints import ENDPOINTS, Endpoint
from rollout.coordinator.keeper import keep, settle
from rollout.coordinator.plan import RunPlan, TaskRows
from rollout.coordinator.run import RowCache, Run, Summarise
from rollout.coordinator.state import build_state
from rollout.errors import (
    CoordinatorError,
    DataError,
    Fenced,
    LedgerBroken,
    LedgerError,
    LedgerFull,
    LedgerRewound,
    LedgerSuperseded,
    LedgerUnreachable,
    RolloutError,
    StoreError,
)
from rollout.ledger.contract import Ledger
from rollout.seams import ObjectStore, Tracker

log = logging.getLogger(__name__)

Handler = Callable[[Run, Any], Awaitable[m.Message]]

BODY_OFF_LOOP_BYTES = 1 << 20
"""Larger bodies are decoded in a thread."""

HANDLERS: dict[str, Handler] = {
    "/v1/actor/register": actors.register,
    "/v1/actor/claim": actors.claim,
    "/v1/actor/heartbeat": actors.heartbeat,
    "/v1/actor/submit": actors.submit,
    "/v1/actor/activation": actors.activation,
    "/v1/actor/outcome": actors.outcome,
    "/v1/learner/start": learner.start,
    "/v1/learner/heartbeat": learner.heartbeat,
    "/v1/learner/publish-initial": learner.publish_initial,
    "/v1/learner/batch": learner.batch,
    "/v1/learner/replay": learner.replay,
    "/v1/learner/commit": commits.commit,
    "/v1/learner/anchor": commits.save_anchor,
    "/v1/learner/fork": learner.fork,
    "/v1/learner/failed": learner.failed,
    "/v1/learner/outcome": actors.outcome,
}


class Coordinator:
    """One run's coordinator in this process; ``boot`` names this life of it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.boot = secrets.token_hex(8)
        self.unexpected_errors = 0
        self._keeping = asyncio.create_task(keep(run))
        self._handlers: dict[str, Handler] = {
            **HANDLERS,
            "/v1/control/stop": _stop,
            "/v1/control/settings": _settings,
        }
        self._decoders = {
            path: msgspec.msgpack.Decoder(row.request) for path, row in ENDPOINTS.items()
        }

    async def handle(self, endpoint: Endpoint, body: bytes) -> tuple[int, bytes]:
        """Answer one authenticated call: an HTTP status and a msgpack body."""
        if self.run.closing:
            return _come_back()
        try:
            ask = await self._decode(endpoint.path, body)
            answer = await self._handlers[endpoint.path](self.run, ask)
        except msgspec.DecodeError as error:
            return refuse(400, CoordinatorError(f"{endpoint.path}: cannot read the body: {error}"))
        except RolloutError as error:
            if self.run.closing:
                return _come_back()
            await self._judge(error)
            return refuse(_status_of(error), error)
        except Exception as error:
            # The outermost loop of a request: a bug of ours is counted and answered, not hidden.
            self.unexpected_errors += 1
            log.exception("bug while handling path=%s", endpoint.path)
            return refuse(500, CoordinatorError(f"internal error: {error!r}"))
        return 200, msgspec.msgpack.encode(answer)

    async def _decode(self, path: str, body: bytes) -> m.Message:
        if len(body) > BODY_OFF_LOOP_BYTES:
            return await asyncio.to_thread(self._decoders[path].decode, body)
        return self._decoders[path].decode(body)

    async def _judge(self, error: RolloutError) -> None:
        """Some refusals mean that the run cannot go on."""
        if isinstance(error, LedgerSuperseded):
            self.run.superseded.set()
        elif isinstance(error, (LedgerFull, LedgerBroken, LedgerRewound, DataError)):
            await self.run.end("Failed", type(error).__name__, str(error))

    async def close(self) -> None:
        """Wake everybody, stop the duties, close the ledger."""
        self.run.closing = True
        self.run.wake()
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        try:
            if not self.run.superseded.is_set():
                await settle(self.run)
        except (LedgerError, StoreError) as error:
            log.error("while closing: %s", error)  # noqa: TRY400 - expected
        await self.run.ledger.close()
        for tracker in self.run.trackers:
            await asyncio.to_thread(tracker.close)


async def open_coordinator(
    plan: RunPlan,
    ledger: Ledger,
    store: ObjectStore,
    rows: TaskRows,
    *,
    snapshots: Path,
    summarise: Summarise,
    trackers: Sequence[Tracker] = (),
    clock: Callable[[], float] | None = None,
) -> Coordinator:
    """A coordinator that goes on where the ledger stands. Raises LedgerError."""
    stored = await ledger.load()
    settings = stored.settings
    run = Run(
        plan=_with_settings(plan, settings),
        ledger=ledger,
        store=store,
        rows=RowCache(rows),
        state=build_state(stored, pools_rewards=plan.pools_rewards),
        snapshots=snapshots,
        summarise=summarise,
        trackers=trackers,
        settings_generation=int(settings.get("generation", 0)),
    )
    if clock is not None:
        run.clock = clock
    run.started_at = run.clock()
    rearmed = await ledger.rearm(plan.lease_seconds)
    await _forgive(run)
    await learner.open_version(run)
    log.info(
        "coordinator open run=%s step=%d lineage=%d position=%d leases=%d",
        plan.name,
        run.state.step,
        run.state.lineage,
        ledger.position,
        rearmed,
    )
    return Coordinator(run)


async def _forgive(run: Run) -> None:
    """A run that ended early, or that is to be longer now, goes on."""
    outcome = run.state.outcome
    if outcome is None:
        return
    if outcome.kind != "Succeeded" or not learner.is_last_step_done(run):
        run.state.outcome = None
        await run.ledger.set_outcome(None)


async def _stop(run: Run, ask: m.Stop) -> m.Empty:
    """A person, or the operator, ends the run early."""
    if run.state.stopping is None:
        run.state.stopping = ask.reason or "Stopped"
        log.info("stopping reason=%s", ask.reason)
    run.wake()
    return m.Empty()


async def _settings(run: Run, ask: m.Settings) -> m.Empty:
    """Live settings; an older generation than the last is ignored."""
    if ask.generation <= run.settings_generation:
        return m.Empty()
    settings = {"generation": ask.generation, "max_steps": ask.max_steps}
    await run.ledger.set_settings(settings)
    run.settings_generation, run.plan = ask.generation, _with_settings(run.plan, settings)
    async with run.turn:
        await learner.open_version(run)
    run.wake()
    return m.Empty()


def _with_settings(plan: RunPlan, settings: dict[str, Any]) -> RunPlan:
    wanted = settings.get("max_steps")
    if wanted is None or (plan.steps_max is not None and wanted < plan.steps_max):
        return plan
    return replace(plan, steps_max=wanted)


def _come_back() -> tuple[int, bytes]:
    """Workers wait for the next life of the coordinator."""
    return refuse(503, CoordinatorError("the coordinator is closing"))


def refuse(status: int, error: Exception) -> tuple[int, bytes]:
    """An answer that is not 200."""
    refusal = m.Refusal(error=type(error).__name__, message=str(error))
    return status, msgspec.msgpack.encode(refusal)


def _status_of(error: RolloutError) -> int:
    if isinstance(error, Fenced):
        return 409
    if isinstance(error, LedgerFull):
        return 507
    if isinstance(error, (LedgerUnreachable, LedgerSuperseded)):
        return 503
    return 500 if isinstance(error, LedgerBroken) else 422

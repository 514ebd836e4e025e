"""The coordinator itself: desks behind one table of calls, the same over HTTP and inside a test.

``open_coordinator`` rebuilds the picture from the ledger, gives every lease one more term, and goes on
exactly where the last acknowledged write left off. ``handle`` answers one call.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.common.duties import keep_going
from rollout.coordinator.calls import actors, commits, learner, results, weight_health
from rollout.coordinator.calls import rendezvous as group
from rollout.coordinator.calls import settings as live
from rollout.coordinator.calls.settings import StepsTuning, Tuning
from rollout.coordinator.context import RowCache, RunContext, Summarise
from rollout.coordinator.housekeeping import keep, settle
from rollout.coordinator.plan import RunPlan, TaskRows
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
    StaleSettings,
    StoreError,
)
from rollout.ledger.contract import Ledger
from rollout.protocol import messages as m
from rollout.protocol.rendezvous import Group
from rollout.protocol.routes import ENDPOINTS, Endpoint
from rollout.seams import ObjectStore

log = logging.getLogger(__name__)

Handler = Callable[[RunContext, Any], Awaitable[m.Message]]

BODY_OFF_LOOP_BYTES = 1 << 20
"""Larger bodies are decoded in a thread."""

HANDLERS: dict[str, Handler] = {
    "/v1/actor/register": actors.register,
    "/v1/actor/claim": actors.claim,
    "/v1/actor/heartbeat": actors.heartbeat,
    "/v1/actor/submit": results.submit,
    "/v1/actor/activation": weight_health.activation,
    "/v1/actor/outcome": actors.outcome,
    "/v1/learner/join": group.join,
    "/v1/learner/stay": group.stay_in,
    "/v1/learner/leaving": group.leaving,
    "/v1/learner/left": group.left,
    "/v1/learner/start": learner.start,
    "/v1/learner/heartbeat": learner.heartbeat,
    "/v1/learner/publish-initial": learner.publish_initial,
    "/v1/learner/batch": learner.batch,
    "/v1/learner/replay": learner.replay,
    "/v1/learner/commit": commits.commit,
    "/v1/learner/anchor": commits.save_anchor,
    "/v1/learner/fork": learner.fork,
    "/v1/learner/stored-again": weight_health.stored_again,
    "/v1/learner/failed": learner.failed,
    "/v1/learner/outcome": actors.outcome,
    "/v1/operator/stop": live.stop,
}

Wire = Literal["msgpack", "json"]
ENCODERS: dict[Wire, Callable[[Any], bytes]] = {
    "msgpack": msgspec.msgpack.encode,
    "json": msgspec.json.encode,
}
DECODERS: dict[Wire, Callable[[type[m.Message]], Any]] = {
    "msgpack": msgspec.msgpack.Decoder,
    "json": msgspec.json.Decoder,
}


class Coordinator:
    """One run's coordinator in this process; ``boot`` names this life of it.

    ``keeping`` does what happens beside the calls: a coordinator whose keeping failed must end.
    """

    def __init__(self, run: RunContext, tuning: Tuning) -> None:
        self.run = run
        self.boot = secrets.token_hex(8)
        self.unexpected_errors = 0
        self.keeping = asyncio.create_task(keep_going("keep", partial(keep, run)))
        self._handlers: dict[str, Handler] = {
            **HANDLERS,
            "/v1/operator/settings": partial(_take_settings, tuning),
        }
        self._decoders = {
            (path, wire): decoder(row.request)
            for path, row in ENDPOINTS.items()
            for wire, decoder in DECODERS.items()
        }

    async def handle(
        self, endpoint: Endpoint, body: bytes, wire: Wire = "msgpack"
    ) -> tuple[int, bytes]:
        """Answer one authenticated call: an HTTP status and a body, in the call's own encoding."""
        status, answer = await self._answer(endpoint, body, wire)
        return status, ENCODERS[wire](answer)

    async def _answer(self, endpoint: Endpoint, body: bytes, wire: Wire) -> tuple[int, m.Message]:
        if self.run.closing:
            return _come_back()
        try:
            ask = await self._decode(endpoint.path, body, wire)
            answer = await self._handlers[endpoint.path](self.run, ask)
        except UNREADABLE as error:
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
        return 200, answer

    async def _decode(self, path: str, body: bytes, wire: Wire) -> m.Message:
        decode = self._decoders[path, wire].decode
        return (
            await asyncio.to_thread(decode, body)
            if len(body) > BODY_OFF_LOOP_BYTES
            else decode(body)
        )

    async def _judge(self, error: RolloutError) -> None:
        """Some refusals mean that the run cannot go on."""
        if isinstance(error, LedgerSuperseded):
            self.run.superseded.set()
        elif isinstance(error, LedgerFull):
            await self.run.meet_full_disk(error)
        elif isinstance(error, (LedgerBroken, LedgerRewound, DataError)):
            await self.run.end("Failed", type(error).__name__, str(error))

    async def close(self) -> None:
        """Wake everybody, stop the duties, close the ledger."""
        self.run.closing = True
        self.run.wake()
        self.keeping.cancel()
        await asyncio.gather(self.keeping, return_exceptions=True)
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
    clock: Callable[[], float] | None = None,
    tuning: Tuning | None = None,
) -> Coordinator:
    """A coordinator that goes on where the ledger stands, under the live settings that it was given last.

    ``tuning`` says what those mean and opens the trackers. Raises LedgerError, and SpecError for settings
    that this run's configuration does not take any more.
    """
    stored = await ledger.load()
    settings = stored.settings
    generation, wanted = live.choose_settings(settings, plan.generation)
    tuning = tuning or StepsTuning(begun=plan)
    run = RunContext(
        plan=tuning.plan(wanted).plan,
        ledger=ledger,
        store=store,
        rows=RowCache(rows),
        state=build_state(stored, pools_rewards=plan.pools_rewards),
        snapshots=snapshots,
        summarise=summarise,
        trackers=await asyncio.to_thread(tuning.trackers, wanted),
        group=Group(
            uid=plan.uid, size=plan.learner_nodes, incarnation=int(settings.get("group", 0))
        ),
        live=wanted,
        settings_generation=generation,
    )
    live.limit_tries(run)
    if clock is not None:
        run.clock = clock
    run.started_at = run.group.since = run.clock()
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
    return Coordinator(run, tuning)


async def _forgive(run: RunContext) -> None:
    """A run that ended early, or that is to be longer now, goes on."""
    outcome = run.state.outcome
    if outcome is None:
        return
    if outcome.kind != "Succeeded" or not learner.is_last_step_done(run):
        run.state.outcome = None
        await run.ledger.set_outcome(None)


async def _take_settings(tuning: Tuning, run: RunContext, ask: m.Settings) -> m.Message:
    return await live.take_settings(run, tuning, ask)


def _come_back() -> tuple[int, m.Message]:
    """Workers wait for the next life of the coordinator."""
    return refuse(503, CoordinatorError("the coordinator is closing"))


def refuse(status: int, error: Exception) -> tuple[int, m.Message]:
    """An answer that is not 200."""
    return status, m.Refusal(error=type(error).__name__, message=str(error))


def _status_of(error: RolloutError) -> int:
    if isinstance(error, (Fenced, StaleSettings)):
        return 409
    if isinstance(error, LedgerFull):
        return 507
    if isinstance(error, (LedgerUnreachable, LedgerSuperseded)):
        return 503
    return 500 if isinstance(error, LedgerBroken) else 422

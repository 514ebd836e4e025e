"""The coordinator itself: desks behind one table of routes, the same over HTTP and inside a test.

``open_coordinator`` rebuilds the picture from the ledger, gives every lease one more term, and goes on
exactly where the last acknowledged write left off. ``handle`` answers one call.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.common.duties import keep_going
from rollout.coordinator import evidence
from rollout.coordinator.calls import actors, batches, commits, learner, results, weight_health
from rollout.coordinator.calls import rendezvous as group
from rollout.coordinator.calls import settings as live
from rollout.coordinator.calls.registry import HANDLERS
from rollout.coordinator.context import RunContext, Summarise
from rollout.coordinator.duties.announcements import announce
from rollout.coordinator.duties.housekeeping import keep, settle
from rollout.coordinator.evidence import keep_rest
from rollout.coordinator.memory import calls as memory
from rollout.coordinator.plan import RunPlan, TaskRows
from rollout.coordinator.rows import RowCache
from rollout.coordinator.rules.evidence import restore
from rollout.coordinator.sandboxes import calls as sandboxes
from rollout.coordinator.settings import SettingsResolver, StepsResolver, choose_settings
from rollout.coordinator.state import build_state
from rollout.errors import (
    CoordinatorError,
    DataError,
    LedgerBroken,
    LedgerError,
    LedgerFull,
    LedgerRewound,
    LedgerSuperseded,
    RolloutError,
    StoreError,
)
from rollout.ledger.contract import Ledger
from rollout.ledger.records import LedgerState
from rollout.protocol import messages as m
from rollout.protocol.envelope import Envelope, check_sender
from rollout.protocol.refusals import build_refusal, status_of
from rollout.protocol.rendezvous import LearnerGroup
from rollout.protocol.routes import ROUTES, Route
from rollout.run_events import RunEnd
from rollout.seams import ObjectStore
from rollout.tracking.closing import close_trackers

log = logging.getLogger(__name__)

BODY_OFF_LOOP_BYTES = 1 << 20
"""Larger bodies are decoded in a thread."""

CALLS = (
    *(actors, batches, commits, evidence, group),
    *(learner, live, memory, results, sandboxes, weight_health),
)
"""What answers calls: importing them registers their handlers."""

assert HANDLERS.keys() == ROUTES.keys(), HANDLERS.keys() ^ ROUTES.keys()

Wire = Literal["msgpack", "json"]
ENCODERS: dict[Wire, Callable[[Any], bytes]] = {
    "msgpack": msgspec.msgpack.encode,
    "json": msgspec.json.encode,
}
DECODERS: dict[Wire, Callable[[type[m.WireMessage]], Any]] = {
    "msgpack": msgspec.msgpack.Decoder,
    "json": msgspec.json.Decoder,
}


class Coordinator:
    """One run's coordinator in this process; ``boot`` names this life of it.

    ``keeping`` does what happens beside the calls: a coordinator whose keeping failed must end.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run
        self.boot = secrets.token_hex(8)
        self.unexpected_errors = 0
        self.keeping = asyncio.create_task(keep_going("keep", partial(keep, run)))
        self._handlers = dict(HANDLERS)
        self._decoders = {
            (path, wire): decoder(route.request)
            for path, route in ROUTES.items()
            for wire, decoder in DECODERS.items()
        }

    async def handle(
        self, route: Route, envelope: Envelope, body: bytes, wire: Wire = "msgpack"
    ) -> tuple[int, bytes]:
        """Answer one authenticated call: an HTTP status and a body, in the call's own encoding."""
        status, answer = await self._answer(route, envelope, body, wire)
        return status, ENCODERS[wire](answer)

    async def _answer(
        self, route: Route, envelope: Envelope, body: bytes, wire: Wire
    ) -> tuple[int, m.WireMessage]:
        if self.run.closing:
            return _come_back()
        try:
            if route.role != "operator":
                check_sender(envelope)
            ask = await self._decode(route.path, body, wire)
            answer = await self._handlers[route.path](self.run, envelope, ask)
        except UNREADABLE as error:
            wrong = CoordinatorError(f"{route.path}: cannot read the body: {error}")
            return HTTPStatus.BAD_REQUEST, build_refusal(wrong)
        except RolloutError as error:
            if self.run.closing:
                return _come_back()
            await self._judge(error)
            return status_of(error), build_refusal(error)
        except Exception as error:
            # The outermost loop of a request: a bug of ours is counted and answered, not hidden.
            self.unexpected_errors += 1
            log.exception("bug while handling path=%s", route.path)
            broken = CoordinatorError(f"internal error: {error!r}")
            return HTTPStatus.INTERNAL_SERVER_ERROR, build_refusal(broken)
        return HTTPStatus.OK, answer

    async def _decode(self, path: str, body: bytes, wire: Wire) -> m.WireMessage:
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
                await keep_rest(self.run)
                await settle(self.run)
        except (LedgerError, StoreError) as error:
            log.error("while closing: %s", error)  # noqa: TRY400 - expected
        if not self.run.superseded.is_set():
            await announce(self.run)
        await self.run.ledger.close()
        found = self.run.state.outcome
        end = None
        if found is not None:
            end = RunEnd(kind=found.kind, reason=found.reason, message=found.message)
        await asyncio.to_thread(close_trackers, self.run.trackers, end)


async def open_coordinator(
    plan: RunPlan,
    ledger: Ledger,
    store: ObjectStore,
    rows: TaskRows,
    *,
    snapshots: Path,
    summarise: Summarise,
    clock: Callable[[], float] | None = None,
    resolver: SettingsResolver | None = None,
) -> Coordinator:
    """A coordinator that goes on where the ledger stands, under the live settings that it was given last.

    ``resolver`` says what those mean and opens the trackers. Raises LedgerError, and SpecError for settings
    that this run's configuration does not take any more.
    """
    stored = await ledger.load()
    settings = stored.settings
    generation, wanted = choose_settings(settings, plan.generation)
    resolver = resolver or StepsResolver(begun=plan)
    run = RunContext(
        plan=resolver.plan(wanted).plan,
        ledger=ledger,
        store=store,
        rows=RowCache(rows),
        state=build_state(stored, pools_rewards=plan.train.pools_rewards),
        snapshots=snapshots,
        summarise=summarise,
        resolver=resolver,
        trackers=await asyncio.to_thread(resolver.trackers, wanted),
        group=LearnerGroup(
            uid=plan.uid, size=plan.learner.nodes, incarnation=int(settings.get("group", 0))
        ),
        live=wanted,
        settings_generation=generation,
        evidence=restore(stored.evidence),
    )
    live.limit_tries(run)
    if clock is not None:
        run.clock = clock
    run.started_at = run.group.since = run.clock()
    rearmed = await ledger.rearm(plan.lease_seconds)
    await _go_on(run, stored)
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


async def _go_on(run: RunContext, stored: LedgerState) -> None:
    """Another run attempt goes on after an early end, or an order to stop.

    The same attempt under a new coordinator does not: its workers have left. A run that is to be longer now goes
    on in any case.
    """
    outcome, stop, attempt = (
        stored.outcome or {},
        stored.settings.get("stop", {}),
        str(run.plan.attempt),
    )
    if stop.get("attempt") == attempt:
        run.state.stopping, run.inherits_stop = stop["reason"], True
    if run.state.outcome is None or (outcome["kind"] == "Succeeded" and run.is_last_step_done()):
        return
    if outcome["kind"] == "Succeeded" or outcome.get("attempt") != attempt:
        run.state.outcome = None
        await run.ledger.set_outcome(None)


def _come_back() -> tuple[int, m.WireMessage]:
    """Workers wait for the next life of the coordinator."""
    closing = CoordinatorError("the coordinator is closing")
    return HTTPStatus.SERVICE_UNAVAILABLE, build_refusal(closing)

"""What the desks of one coordinator share: the plan, the ledger, the picture, and who to wake."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from rollout.coordinator.plan import RunPlan
from rollout.coordinator.rows import RowCache
from rollout.coordinator.rules.autoscaling import ScaleState
from rollout.coordinator.rules.batch_selection import is_exhausted
from rollout.coordinator.rules.evidence import EvidenceState
from rollout.coordinator.rules.recall_state import RecallState
from rollout.coordinator.settings import SettingsResolver
from rollout.coordinator.state import RunState
from rollout.errors import CoordinatorError, LedgerError, LedgerFull, NotStored, StoreError
from rollout.ledger.contract import Ledger
from rollout.ledger.records import Lease
from rollout.protocol import messages as m
from rollout.protocol.envelope import Envelope
from rollout.protocol.rendezvous import LearnerGroup
from rollout.protocol.status import RunOutcome
from rollout.seams import Follower, ObjectStore, Tracker
from rollout.snapshots.guard import SnapshotGuard
from rollout.types import WeightVersion
from rollout_api.fields.live import LiveSettings
from rollout_api.v1alpha1.run_status import DayOfUse

log = logging.getLogger(__name__)

WAIT_MAX_SECONDS = 60.0
"""Longest long-poll that is granted, whatever is asked for."""

FINISHED = "Finished"
"""The stop reason of a learner whose run has all its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCounts:
    """What is in the files of an inference run."""

    num_rows: int
    num_failed: int
    num_tokens: int
    place: str


class Packer(Protocol):
    """Packs a version's model into the store, for runs that start from this one."""

    def __call__(self, store: ObjectStore, version: WeightVersion) -> str:
        """Its URI. Raises StoreError."""
        ...


class ResultsWriter(Protocol):
    """Writes the results of an inference run, whole or not at all; the same bytes however often it is called."""

    def __call__(self) -> ResultCounts:
        """How many rows it wrote. Raises StoreError or LedgerError."""
        ...


class SnapshotTaker(Protocol):
    """Takes snapshots of the run beside its work; an answer never waits for one."""

    def answer(self, ask: m.SnapshotOrder) -> m.SnapshotState:
        """How far the snapshot is that is asked for; begins it where nobody has."""
        ...


class SandboxPods(Protocol):
    """Gives actors the sandbox pods of the run."""

    async def claim(self, run: RunContext, ask: m.ClaimSandbox) -> m.SandboxClaimed:
        """A pod that is ready, waited for."""
        ...

    async def release(self, run: RunContext, ask: m.ReleaseSandbox) -> m.SandboxReleased:
        """It is not needed any more; of a lost one, how it ended."""
        ...


Summarise = Callable[[Sequence[Sequence[float]]], Mapping[str, Any]]
"""From rewards by prompt and sample to an evaluation's summary (value and interval by metric)."""


class Notifier:
    """Wakes everybody who waits, at once. Take ``ticket`` before looking, then wait on it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        """An event that the next ``beat`` sets."""
        return self._event

    def beat(self) -> None:
        """Wake all who hold a ticket."""
        self._event.set()
        self._event = asyncio.Event()


async def wait_for(ticket: asyncio.Event, seconds: float) -> None:
    """Wait for a pulse, at most so long."""
    if seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await ticket.wait()
    except TimeoutError:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """Without all groups from ``ordinal`` to ``end`` there is no batch from ``cursor`` on, while ``plan`` is the run's."""

    plan: RunPlan
    cursor: int
    ordinal: int
    end: int


@dataclass(slots=True, kw_only=True)
class Waits:
    """Seconds that each side spent waiting for the other since the last step.

    ``actors_needed`` is what that says of the last step; None before the first, and of one without actors.
    ``awaited``: what the last look for a batch found missing. ``working``: when actors at work were counted, among how many workers, and how many.
    """

    learner_since: float | None = None
    learner_for: str = ""
    learner_seconds: float = 0.0
    actor_seconds: float = 0.0
    idle: dict[str, float] = field(default_factory=dict)
    working: tuple[float, int, int] = (float("-inf"), 0, 0)
    shares: tuple[float, float] = (0.0, 0.0)
    actors_needed: float | None = None
    awaited: Awaited | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingClaim:
    """One actor that waits. ``granted``: what a commit has leased to it."""

    sender: Envelope
    ask: m.Claim
    granted: asyncio.Future[tuple[Lease, ...]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """The ledger's disk has been full since then; over as soon as the ledger stands beyond ``position``."""

    since: float
    position: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlace:
    """The place of results has taken nothing since then."""

    since: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Nothing has moved for too long. ``worker`` holds the run up; empty where no one does. ``at``: found then."""

    worker: str
    message: str
    at: datetime


@dataclass(slots=True, kw_only=True)
class RunContext:
    """One run being coordinated.

    ``packer`` None: nobody will ask for the models of this run. ``results`` None: it answers no rows. ``handed`` are the places of the packed ones
    by the snapshot's name; None while they are still to be packed. ``pinned`` are objects of the store that are
    no version's and no anchor's: models that the manifest brings. ``guard`` None: nobody takes snapshots of this store. ``snapshot_taker`` None: none can be ordered. ``sandboxes`` None: nothing of this run needs a sandbox pod. ``removed_step``: this process has seen that no
    body of a step up to it is left to remove. ``remembers``: it has seen writes into memory, which is pruned up to ``pruned_step``. ``learner_until``: the learner was told to go and is killed then. ``saving``: the version whose anchor the learner writes. ``claims`` wait for work. ``turn`` orders what changes the structure of the run, ``tracking`` what is told to trackers. ``bad_trackers``: why one refused the newest of what it is told, by its name and what that is.
    ``usage_settled``: ``usage`` reaches to the end of a run that has ended; nobody waits for it where nobody sums it up.
    """

    plan: RunPlan
    ledger: Ledger
    store: ObjectStore
    rows: RowCache
    state: RunState
    snapshots: Path
    summarise: Summarise
    resolver: SettingsResolver
    trackers: Sequence[Tracker] = ()
    clock: Callable[[], float] = time.monotonic
    started_at: float = 0.0
    work: Notifier = field(default_factory=Notifier)
    batches: Notifier = field(default_factory=Notifier)
    changed: Notifier = field(default_factory=Notifier)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)
    waits: Waits = field(default_factory=Waits)
    claims: list[WaitingClaim] = field(default_factory=list)
    pace: ScaleState | None = None
    recalls: RecallState = field(default_factory=RecallState)
    retired: list[tuple[int, int]] = field(default_factory=list)
    removed_step: int = -1
    remembers: bool = False
    pruned_step: int = 0
    references: dict[str, bytes] = field(default_factory=dict)
    damaged: WeightVersion | None = None
    group: LearnerGroup
    live: LiveSettings = field(default_factory=LiveSettings)
    settings_generation: int = 0
    tracking: asyncio.Lock = field(default_factory=asyncio.Lock)
    bad_trackers: dict[str, str] = field(default_factory=dict)
    full: NoRoom | None = None
    unwritten: NoPlace | None = None
    packer: Packer | None = None
    results: ResultsWriter | None = None
    snapshot_taker: SnapshotTaker | None = None
    sandboxes: SandboxPods | None = None
    handed: Mapping[str, str] | None = None
    pinned: frozenset[str] = frozenset()
    guard: SnapshotGuard | None = None
    stuck: Stuck | None = None
    usage: tuple[DayOfUse, ...] = ()
    usage_settled: bool = True
    learner_until: float | None = None
    saving: tuple[int, int] | None = None
    evidence: EvidenceState = field(default_factory=EvidenceState)
    closing: bool = False
    inherits_stop: bool = False
    superseded: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Something changed that anybody may wait for."""
        self.work.beat()
        self.batches.beat()
        self.changed.beat()

    def wake_for_results(self) -> None:
        """Results came and no task was given back: whoever waits for a task need not look."""
        self.batches.beat()
        self.changed.beat()

    async def has_object(self, digest: str) -> bool:
        """Whether the store has an object now; a bucket may take its time to say. Raises StoreError."""
        return await asyncio.to_thread(self.store.has, digest)

    async def require_objects(self, who: str, parts: Mapping[str, str]) -> None:
        """That objects, by what they are, are in the store; in the run's turn, so that they stay. Raises NotStored, StoreError."""
        gone = [part for part, digest in parts.items() if not await self.has_object(digest)]
        if gone:
            names = ", ".join(f"{part} ({parts[part]})" for part in gone)
            raise NotStored(f"{who}: not in the store: {names}; store it again, then call again")

    def tracker_troubles(self) -> tuple[str, ...]:
        """Why trackers do not take what they are given, now: those that recovered say nothing."""
        own = (one.trouble for one in self.trackers if isinstance(one, Follower))
        return (*self.bad_trackers.values(), *(trouble for trouble in own if trouble))

    def stop_reason(self) -> str | None:
        """Why workers should end, or None. Raises CoordinatorError while this process is closing."""
        if self.closing:
            raise CoordinatorError("the coordinator is closing")
        if self.state.outcome is not None:
            return self.state.outcome.reason
        return self.state.stopping

    def is_last_step_done(self) -> bool:
        """Whether the run has all its steps."""
        last, cursor = self.plan.train.steps_total, self.state.cursor
        done = last is not None and self.state.step >= last
        return done or cursor.exhausted or is_exhausted(self.plan, cursor.next_ordinal)

    def is_full(self) -> bool:
        """Whether the ledger's disk had no room the last time it was asked."""
        return self.full is not None and self.ledger.position <= self.full.position

    async def meet_full_disk(self, error: LedgerFull) -> None:
        """Wait for room, as nothing is lost; end the run when nobody makes any for too long."""
        if self.full is None or not self.is_full():
            log.error("waiting for room: %s", error)
            self.full = NoRoom(
                since=self.clock(), position=self.ledger.position, message=str(error)
            )
        elif self.clock() - self.full.since > self.plan.limits.full_seconds:
            await self.end("Failed", type(error).__name__, str(error))

    async def meet_lost_place(self, error: StoreError) -> None:
        """Wait for the place of results, as every answer is in the ledger; end the run when it is away for too long."""
        if self.unwritten is None:
            log.error("results wait for their place: %s", error)
            self.unwritten = NoPlace(since=self.clock(), message=str(error))
        elif self.clock() - self.unwritten.since > self.plan.limits.full_seconds:
            kept = (
                "every answer is in the run's ledger: going on with the run (--resume) writes them"
            )
            await self.end("Failed", type(error).__name__, f"{error}; {kept}")

    async def remember(
        self,
        *,
        generation: int | None = None,
        live: LiveSettings | None = None,
        group: int | None = None,
        stopping: str | None = None,
    ) -> None:
        """Make durable what was set, beside what is. Ask for it in your ``turn``. Raises LedgerError."""
        stopping = stopping or self.state.stopping
        settings = {
            "generation": self.settings_generation if generation is None else generation,
            "live": (live or self.live).model_dump(mode="json", exclude_none=True),
            "group": self.group.incarnation if group is None else group,
        }
        if stopping is not None:
            settings["stop"] = {"reason": stopping, "attempt": str(self.plan.attempt)}
        await self.ledger.set_settings(settings)

    async def stop(self, reason: str) -> None:
        """Have the run end early, once, and then tell everybody.

        No life of this process forgets it until another run attempt begins. Ask for it in your ``turn``. A
        broken ledger cannot prevent it.
        """
        if self.state.stopping is not None:
            return
        log.warning("stopping: %s", reason)
        try:
            await self.remember(stopping=reason)
        except LedgerError as error:
            log.error("the order to stop is not in the ledger: %s", error)  # noqa: TRY400 - expected
        self.state.stopping = reason
        self.wake()

    async def end(self, kind: str, reason: str, message: str) -> None:
        """Record how the run ended, once, and then tell everybody.

        In this order: nobody leaves for an end that the next life of this process knows nothing of. A broken
        ledger cannot prevent it, closing this process can. Raises CoordinatorError while it is closing.
        """
        async with self.ending:
            if self.state.outcome is not None:
                return
            ended = {"kind": kind, "reason": reason, "message": message}
            log.info("run ends outcome=%s reason=%s message=%s", kind, reason, message)
            try:
                await self.ledger.set_outcome({**ended, "attempt": str(self.plan.attempt)})
            except LedgerError as error:
                if self.closing:
                    raise CoordinatorError("the coordinator is closing") from error
                log.error("the outcome is not in the ledger: %s", error)  # noqa: TRY400 - expected
            self.state.outcome = RunOutcome(**ended)
            self.wake()

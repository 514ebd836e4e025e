"""What the learner and the coordinator say to each other: batches, commits, anchors, lineages."""

from __future__ import annotations

from typing import Any

import msgspec

from rollout.ledger.records import AnchorManifest, Cursor, StepRecord
from rollout.protocol.messages.base import WireMessage
from rollout.types import Row, TrajectoryGroup, WeightVersion


class LearnerStart(WireMessage, frozen=True, kw_only=True):
    """Rank 0 of the learner has started."""

    pid: int = 0
    """Of its process, for people; 0: not said."""
    host: str = ""
    """Where it runs, for people."""


class LearnerStarted(WireMessage, frozen=True, kw_only=True):
    """Where to go on: load ``anchor``, then replay ``replay`` in order."""

    incarnation: int
    """Goes with every later call; an older learner is fenced."""
    lineage: int
    """The live one, from 0."""
    committed_step: int
    """Last step of it; 0: none."""
    chain: str
    """Value of the hash chain behind ``committed_step``."""
    anchor: AnchorManifest | None
    """None: the initial model."""
    replay: tuple[StepRecord, ...]
    """Steps after the anchor, up to ``committed_step``."""
    initial: WeightVersion | None
    """Version of step 0; None: publish it first."""
    heartbeat_seconds: float
    """Between two heartbeats."""
    steps_max: int | None = None
    """Last step of the run as known now; None: no bound."""


class PublishInitial(WireMessage, frozen=True, kw_only=True):
    """The version of step 0. Idempotent for an equal one."""

    version: WeightVersion
    """Its object is already stored."""
    chain: str = ""
    """First value of the hash chain."""


class BatchRequest(WireMessage, frozen=True, kw_only=True):
    """Ask for the batch of a step."""

    step: int
    """Committed step + 1, from 1."""
    wait_seconds: float = 0.0
    """How long the answer may wait for the batch."""
    told_seconds: float | None = None
    """The learner is preempted and may save for so long; None: it is not."""
    saving: tuple[int, int] | None = None
    """(lineage, step) of the version whose anchor is being written meanwhile: it is needed until that is saved; None:
    none is."""


class DataRow(WireMessage, frozen=True, kw_only=True):
    """One row of an offline algorithm's batch."""

    ordinal: int
    """Its place in data order, from 0."""
    row: Row
    """Its fields."""


class Batch(WireMessage, frozen=True, kw_only=True):
    """The batch of one step, or why there is none yet.

    Exactly one of these holds: ``stop`` is set, ``waiting`` is set, or the batch is complete.
    """

    step: int
    """That was asked for."""
    ids: tuple[tuple[str, ...], ...] = ()
    """``ids[i]`` names, in sample order, the trajectories of ``groups[i]``, or holds the one id of ``rows[i]``: what
    a commit lists as consumed."""
    groups: tuple[TrajectoryGroup, ...] = ()
    """Generated, in data order; groups whose samples were all excluded are absent."""
    rows: tuple[DataRow, ...] = ()
    """Of an offline algorithm, in data order."""
    held_out: tuple[DataRow, ...] = ()
    """Rows that are measured after the step, where one is due."""
    cursor: Cursor | None = None
    """Where the data stands after the step; the commit repeats it."""
    num_excluded: int = 0
    """Groups whose samples were all excluded."""
    waiting: str | None = None
    """Whom the run waits for: ask again."""
    stop: str | None = None
    """Why it stops: save an anchor, report the outcome, end."""
    save_seconds: float | None = None
    """With ``stop``: save only what is durable by then; None: no such bound."""
    store_again: bool = False
    """With ``waiting``: the committed version cannot be had from the store; store it whole and say so before asking
    again."""
    anchor_every_steps: int | None = None
    """What ``snapshots`` asks for now; None: as the learner began."""
    replay_steps_max: int | None = None
    """Most steps that may be committed after the last anchor that was reported; None: no bound."""


class ReplayRequest(WireMessage, frozen=True, kw_only=True):
    """Ask for the recorded batch of a committed step of the live lineage."""

    step: int
    """Up to the last one committed."""


class Follow(WireMessage, frozen=True, kw_only=True):
    """A learner that stands by asks what there is beyond what it holds; no incarnation begins."""

    lineage: int
    """Of the state that it holds."""
    step: int
    """Of the state that it holds."""
    replays: bool = True
    """False: it holds nothing of that state but the place, so that an anchor after it is all that helps."""


class Followed(WireMessage, frozen=True, kw_only=True):
    """What a learner that stands by does next.

    Load ``anchor``, or take the step of ``record`` again on ``batch``; neither: nothing is new.
    """

    lineage: int
    """The live one."""
    stop: str | None = None
    """Why it is not needed any more; None: it is."""
    initial: WeightVersion | None = None
    """Version of step 0 of lineage 0; None: there is none yet."""
    anchor: AnchorManifest | None = None
    """Newer than what it holds."""
    record: StepRecord | None = None
    """Of the step after the one that it holds."""
    batch: Batch | None = None
    """What that step consumed."""


class Commit(WireMessage, frozen=True, kw_only=True):
    """One step is done and its version's object stored. Idempotent for an equal commit."""

    step: int
    """Committed step + 1."""
    lineage: int
    """The live one."""
    consumed: tuple[str, ...]
    """Ids of the batch in the order in which they were consumed."""
    plan: dict[str, Any]
    """Whatever replay needs beside the bodies (the micro-batch plan)."""
    version: WeightVersion
    """The weights after the step."""
    chain: str
    """Value of the hash chain behind the step."""
    cursor: Cursor
    """As given in the batch."""
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of the step, by name; numbers and small JSON values."""
    phase_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    """What each phase of the step took."""
    filtered: dict[str, str] = msgspec.field(default_factory=dict)
    """Ids of the batch that the learner left out, and the reason (``length``)."""


class Committed(WireMessage, frozen=True, kw_only=True):
    """What became of a commit."""

    accepted: bool
    """The step is durable."""
    stop: str | None = None
    """As in ``Batch``."""


class AnchorSaved(WireMessage, frozen=True, kw_only=True):
    """An anchor is durable on disk."""

    manifest: AnchorManifest
    """What it holds, by digest."""


class Fork(WireMessage, frozen=True, kw_only=True):
    """Replay met a digest that is not the committed one: open a new lineage."""

    step: int
    """Last step whose state the learner holds; the new lineage begins after it."""
    version: WeightVersion
    """That state's weights, object already stored; its ``lineage`` field is ignored."""
    chain: str
    """First value of the new lineage's chain."""
    reason: str
    """Which digest differed, for people."""


class Forked(WireMessage, frozen=True, kw_only=True):
    """The lineage to go on with; the next step is ``Fork.step + 1``."""

    lineage: int
    """Goes on after ``Fork.step``."""


class StoredAgain(WireMessage, frozen=True, kw_only=True):
    """The weights of the committed version lie in another object."""

    version: WeightVersion
    """With that object, which is in the store."""


class Failed(WireMessage, frozen=True, kw_only=True):
    """The learner cannot go on (out of memory, NaN loss): the run stops."""

    kind: str
    """The reason of the run's end, in CamelCase."""
    message: str
    """The run's message."""

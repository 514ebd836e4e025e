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
    host: str = ""


class LearnerStarted(WireMessage, frozen=True, kw_only=True):
    """Where to go on: load ``anchor`` (None: the initial model), then replay ``replay`` in order.

    ``initial`` None: publish version 0 first. ``chain`` is the chain value of ``committed_step``.
    ``steps_max`` is the last step of the run as known now.
    """

    incarnation: int
    lineage: int
    committed_step: int
    chain: str
    anchor: AnchorManifest | None
    replay: tuple[StepRecord, ...]
    initial: WeightVersion | None
    heartbeat_seconds: float
    steps_max: int | None = None


class PublishInitial(WireMessage, frozen=True, kw_only=True):
    """Version of step 0, its object already stored. Idempotent for an equal version."""

    version: WeightVersion
    chain: str = ""


class BatchRequest(WireMessage, frozen=True, kw_only=True):
    """Ask for the batch of ``step`` (1-based, committed step + 1), waiting up to ``wait_seconds``.

    ``told_seconds``: the learner was told to go, and may save for so long; None: it was not.
    ``saving``: (lineage, step) of the version whose anchor is being written meanwhile: it is needed until that is
    saved; None: none is.
    """

    step: int
    wait_seconds: float = 0.0
    told_seconds: float | None = None
    saving: tuple[int, int] | None = None


class DataRow(WireMessage, frozen=True, kw_only=True):
    """One row of an offline algorithm's batch."""

    ordinal: int
    row: Row


class Batch(WireMessage, frozen=True, kw_only=True):
    """The batch of one step, or why there is none yet.

    Exactly one of these holds: ``stop`` is set (save an anchor, report the outcome, end;
    where ``save_seconds`` is set, save only what is durable by then);
    ``waiting`` is set (ask again; it names whom the run waits for); or the batch is complete.
    ``groups`` (generated) or ``rows`` (offline) are in data order. ``ids[i]`` names, in sample order,
    the trajectories of ``groups[i]``, or holds the one id of ``rows[i]``: what a commit lists as
    consumed. Groups whose samples were all excluded are absent and counted in ``num_excluded``.
    ``store_again`` (with ``waiting``): the committed version cannot be had from the store; store it whole and
    say so before asking again. ``held_out`` rows are measured after the step, where one is due. ``anchor_every_steps`` is what
    ``snapshots`` asks for now; None: as the learner began. ``replay_steps_max`` bounds how many steps may be committed
    after the last anchor that was reported; None: nothing does.
    """

    step: int
    ids: tuple[tuple[str, ...], ...] = ()
    groups: tuple[TrajectoryGroup, ...] = ()
    rows: tuple[DataRow, ...] = ()
    held_out: tuple[DataRow, ...] = ()
    cursor: Cursor | None = None
    num_excluded: int = 0
    waiting: str | None = None
    stop: str | None = None
    save_seconds: float | None = None
    store_again: bool = False
    anchor_every_steps: int | None = None
    replay_steps_max: int | None = None


class ReplayRequest(WireMessage, frozen=True, kw_only=True):
    """Ask for the recorded batch of a committed step of the live lineage."""

    step: int


class Follow(WireMessage, frozen=True, kw_only=True):
    """A learner that stands by asks what there is beyond what it holds; no incarnation begins.

    It holds the state of ``step``; ``replays`` False: of it nothing but the place, so that an anchor after it is all that helps.
    """

    lineage: int
    step: int
    replays: bool = True


class Followed(WireMessage, frozen=True, kw_only=True):
    """What a learner that stands by does next: load ``anchor``, or take the step of ``record`` again on ``batch``.

    Neither: nothing is new. ``stop``: it is not needed any more. ``initial`` is the version of step 0.
    """

    lineage: int
    stop: str | None = None
    initial: WeightVersion | None = None
    anchor: AnchorManifest | None = None
    record: StepRecord | None = None
    batch: Batch | None = None


class Commit(WireMessage, frozen=True, kw_only=True):
    """One step is done and its version's object stored. Idempotent for an equal commit.

    ``consumed``: the ids of the batch in the order in which they were consumed. ``plan``: whatever
    replay needs beside the bodies (the micro-batch plan). ``cursor``: as given in the batch.
    ``filtered`` maps ids of the batch that the learner left out to the reason (``length``).
    """

    step: int
    lineage: int
    consumed: tuple[str, ...]
    plan: dict[str, Any]
    version: WeightVersion
    chain: str
    cursor: Cursor
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    phase_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    filtered: dict[str, str] = msgspec.field(default_factory=dict)


class Committed(WireMessage, frozen=True, kw_only=True):
    """``accepted`` is True once the step is durable; ``stop`` as in ``Batch``."""

    accepted: bool
    stop: str | None = None


class AnchorSaved(WireMessage, frozen=True, kw_only=True):
    """``manifest`` is durable on disk."""

    manifest: AnchorManifest


class Fork(WireMessage, frozen=True, kw_only=True):
    """Replay met a digest that is not the committed one: open a new lineage after ``step``.

    ``step`` is the last step whose state the learner holds and ``version`` that state's weights under
    the new lineage (its ``lineage`` field is ignored), object already stored.
    """

    step: int
    version: WeightVersion
    chain: str
    reason: str


class Forked(WireMessage, frozen=True, kw_only=True):
    """The lineage to go on with; the next step is ``Fork.step + 1``."""

    lineage: int


class StoredAgain(WireMessage, frozen=True, kw_only=True):
    """The weights of the committed version lie in another object, which is in the store."""

    version: WeightVersion


class Failed(WireMessage, frozen=True, kw_only=True):
    """The learner cannot go on (out of memory, NaN loss): the run stops with ``message``."""

    kind: str
    message: str

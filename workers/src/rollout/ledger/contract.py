"""What a ledger promises. One contract, one conformance suite, any number of implementations.

Every method is one atomic, durable transaction: when it returns, its effect survives any crash; when
it raises, nothing of it happened. Leases are judged by the ledger's own clock. A write that carries an
older epoch or incarnation than the ledger knows is refused, never applied.
All methods raise LedgerError when the store fails (LedgerFull: the disk) and Fenced when the caller
has been superseded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rollout.ledger.cuts import Cells, LedgerCut
from rollout.ledger.records import (
    Admission,
    AnchorManifest,
    AttemptEnd,
    ClaimRequest,
    Claims,
    Disposition,
    LedgerState,
    LifeNote,
    MemoryPart,
    Registration,
    Removal,
    RunIdentity,
    StepBatch,
    StepCommit,
    StepRecord,
    Verdict,
)
from rollout.ledger.views import LifeView
from rollout.types import WeightVersion


class Ledger(Protocol):
    """The durable truth of one run."""

    @property
    def identity(self) -> RunIdentity:
        """Whose ledger this is."""
        ...

    @property
    def position(self) -> int:
        """How many writes were acknowledged; never shrinks."""
        ...

    async def load(self) -> LedgerState:
        """Everything a coordinator needs to go on."""
        ...

    async def restore(self, cut: LedgerCut, reason: str) -> None:
        """Begin an empty ledger at a cut of another. Raises LedgerError where a run has begun in it."""
        ...

    async def go_back(self, anchor: AnchorManifest, reason: str, memory: Cells = ()) -> int:
        """Open a new lineage after the step of ``anchor`` and return it; what waited then waits again.

        Samples of later versions are removed, and their tasks open again, with the same noise; later steps stay written
        down and count no more. ``memory``: its rows as a snapshot of then has them, of which some may be gone here. Every process of before is fenced. Raises LedgerError where the anchor's step, weights or
        chain are not this ledger's own.
        """
        ...

    async def rearm(self, lease_seconds: float) -> int:
        """Give every lease one full term from now; returns how many. For a coordinator that starts."""
        ...

    async def register(
        self, worker: str, role: str, *, pid: int = 0, host: str = ""
    ) -> Registration:
        """Start a new incarnation of a worker; the leases of older ones count as lost at once."""
        ...

    async def admit(self, admission: Admission) -> None:
        """Let tasks in. Idempotent for tasks that are already in."""
        ...

    async def claim(self, request: ClaimRequest) -> Claims:
        """Lease up to ``tasks_max`` tasks."""
        ...

    async def renew(
        self, worker: str, incarnation: int, task_ids: Sequence[str], lease_seconds: float
    ) -> tuple[str, ...]:
        """Extend leases; returns those that are no longer this worker's."""
        ...

    async def submit(
        self, worker: str, incarnation: int, ends: Sequence[AttemptEnd]
    ) -> tuple[Verdict, ...]:
        """End attempts. Repeating an accepted end is accepted again and changes nothing.

        The beginnings that a returned attempt brings are kept until its task has a result.
        """
        ...

    async def expire(self, task_ids: Sequence[str]) -> tuple[str, ...]:
        """Give up those of these tasks that have no result yet; returns them. Later results are refused."""
        ...

    async def prefixes_of(self, task_ids: Sequence[str]) -> dict[str, bytes]:
        """The beginnings that returned attempts left of tasks without a result."""
        ...

    async def memory_of(
        self, lineage: int, step: int, after: tuple[int, int, int, str]
    ) -> MemoryPart:
        """Rows of memory as of a version, behind the row at ``after`` (step, ordinal, sample, key), in their order.

        Raises NoLongerKept for a version of before ``MemoryPart.kept_from``.
        """
        ...

    async def prune_memory(self, step: int) -> bool:
        """Let go of rows of memory that were overwritten by the end of ``step``, a few steps at a time; whether more are left.

        Nothing reads memory as of an earlier version from then on. Raises LedgerError when an anchor of an earlier step may be
        resumed from.
        """
        ...

    async def publish_initial(self, incarnation: int, version: WeightVersion, chain: str) -> None:
        """Record version 0. Idempotent for an equal version, LedgerError for another."""
        ...

    async def store_again(self, incarnation: int, version: WeightVersion) -> None:
        """A version's weights lie in other objects from now on; LedgerError for another digest."""
        ...

    async def commit(self, commit: StepCommit) -> tuple[Claims | None, ...]:
        """Commit one step: versions, dispositions, cursor and admissions together, and then its claims in their order.

        None for a claim whose worker was replaced, or registers just now. Idempotent for an equal commit. Raises LedgerError when the step is not the next one, when a
        consumed sample has no trajectory, or when a sample already has a disposition.
        """
        ...

    async def record(self, step: int) -> StepRecord | None:
        """A committed step of the live lineage."""
        ...

    async def records_after(self, step: int) -> tuple[StepRecord, ...]:
        """The committed steps of the live lineage after ``step``, in order."""
        ...

    async def batch_of(self, step: int) -> StepBatch:
        """The recorded batch of a committed step of the live lineage. Raises LedgerError."""
        ...

    async def metrics_after(self, step: int) -> tuple[tuple[int, int, dict[str, Any]], ...]:
        """(lineage, step, metrics) of the live lineage's steps after ``step``, in order."""
        ...

    async def fork(
        self, incarnation: int, base_step: int, version: WeightVersion, chain: str, reason: str
    ) -> int:
        """Open a new lineage after ``base_step`` and return it; later steps of the old one are dead.

        Raises NoLongerKept when bodies of tasks that it would take again were removed.
        """
        ...

    async def save_anchor(self, incarnation: int, manifest: AnchorManifest) -> None:
        """Record a durable anchor. Idempotent."""
        ...

    async def delete_anchors(self, anchors: Sequence[tuple[int, int]]) -> None:
        """Forget (lineage, step) anchors before their files are deleted."""
        ...

    async def remove_bodies(self, step: int, num_max: int) -> Removal:
        """Remove up to ``num_max`` bodies of what ended by ``step``, and write down that they are gone.

        Ids, rewards, lengths and chain values stay, and so do the answers of each evaluation's first and
        newest version. Raises LedgerError when an anchor may be resumed from that replays such a step.
        """
        ...

    async def finish_evaluation(
        self, name: str, split: str, lineage: int, step: int, summary: Mapping[str, Any]
    ) -> None:
        """Record an evaluation's result."""
        ...

    async def evaluation_rewards(
        self, name: str, split: str, lineage: int, step: int
    ) -> Mapping[int, Sequence[Mapping[str, float]]]:
        """What each reward said of each answer that is there, by prompt and sample. Raises LedgerError."""
        ...

    async def dispose(self, step: int, dispositions: Sequence[Disposition]) -> None:
        """Record how samples ended that no step will take, closing their tasks."""
        ...

    async def set_tracked(self, step: int) -> None:
        """Remember the last step that every tracker has."""
        ...

    async def set_outcome(self, outcome: Mapping[str, str] | None) -> None:
        """Record how the run ended; None: it goes on (failures of user code are forgiven)."""
        ...

    def limit_failures(self, failures_max: int) -> None:
        """From now on, exclude a task after so many infrastructure failures (``Limits.failures_max``)."""
        ...

    async def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the live settings."""
        ...

    async def worker_ended(self, worker: str, incarnation: int, outcome: str) -> None:
        """Record how this incarnation of a worker ended."""
        ...

    async def note_lives(self, notes: Sequence[LifeNote]) -> None:
        """Record who was heard and when, for what a run costs; nothing else hangs on it."""
        ...

    async def lives(self) -> tuple[LifeView, ...]:
        """All that was noted of lives, in the order in which they began."""
        ...

    async def add_event(self, kind: str, message: str, data: Mapping[str, Any]) -> None:
        """Add to the run's log of notable events."""
        ...

    async def close(self) -> None:
        """Finish queued writes and let go of the store. Idempotent."""
        ...

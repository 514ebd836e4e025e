"""Reading a ledger beside a live run, or after it: never writes, never blocks the writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal, Self

from rollout.codec import Outline, decode_body, name_trajectory
from rollout.errors import LedgerError
from rollout.ledger.cuts import LedgerCut
from rollout.ledger.records import AnchorManifest, LedgerState, RunIdentity, StepBatch, StepRecord
from rollout.ledger.sql import browsing, cutting, loading, removing
from rollout.ledger.sql.cells import read_document, read_optional
from rollout.ledger.sql.chain import head_step, read_ancestry
from rollout.ledger.sql.tallies import SINCE_FORMAT, count_dispositions, read_tallies
from rollout.ledger.sql.transaction import EVERYTHING, Row, Transaction, marks, slices
from rollout.ledger.views import (
    AttemptView,
    Consumption,
    EvaluationView,
    EventView,
    RemovedView,
    RunView,
    SampleExcerpt,
    SampleView,
    StepView,
    TraceView,
)
from rollout.types import Trajectory, WeightVersion

Sort = Literal["place", "reward", "length"]
ROW_FIELDS = tuple(name for name in SampleView.__struct_fields__ if name != "trajectory")


class Reader(ABC):
    """Read-only views of one ledger. A ``with`` block turns errors of the database into LedgerError.

    ``where`` names the ledger in messages, ``have`` is its format; ``snapshot`` reads several things as of
    one moment.
    """

    where: str
    have: int

    @property
    @abstractmethod
    def _tx(self) -> Transaction:
        """What to query now."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Transaction]:
        """One transaction, in which nothing changes."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the ledger."""

    @abstractmethod
    def _translate(self, error: BaseException) -> LedgerError | None:
        """The error of ours for one of the database's; None for any other."""

    def __enter__(self) -> Self:
        """Use as a context manager to close at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        translated = None if error is None else self._translate(error)
        if translated is not None:
            raise translated from error

    def run(self) -> RunView:
        """The run's identity, where it stands and how it ended."""
        row = self._tx.execute("SELECT * FROM run").fetchone()
        step = head_step(self._tx)
        version = self._tx.execute(
            "SELECT * FROM versions WHERE step = ? ORDER BY lineage DESC LIMIT 1", (step,)
        ).fetchone()
        return RunView(
            identity=RunIdentity(uid=row["uid"], name=row["name"], spec_digest=row["spec_digest"]),
            created_at=row["created_at"],
            position=self._tx.position(),
            lineage=row["lineage"],
            step=step,
            chain="" if version is None else version["chain"],
            version=None if version is None else loading.read_version(version),
            outcome=read_optional(row["outcome"], "run.outcome"),
        )

    def steps(self, after: int = 0, limit: int | None = None) -> tuple[StepView, ...]:
        """The committed steps of the live chain after ``after``, in order: metrics and hash chain."""
        found: list[StepView] = []
        for lineage, bound in reversed(read_ancestry(self._tx)):
            rows = self._tx.execute(
                f"SELECT s.*, v.digest, v.object, v.chain, {self._num_consumed} AS consumed"
                " FROM steps s JOIN versions v ON v.lineage = s.lineage AND v.step = s.step"
                " WHERE s.lineage = ? AND s.step > ? AND s.step <= ? ORDER BY s.step LIMIT ?",
                (
                    lineage,
                    after,
                    EVERYTHING if bound is None else bound,
                    EVERYTHING if limit is None else limit - len(found),
                ),
            )
            found.extend(_step_view(row) for row in rows)
        return tuple(found)

    @property
    def _num_consumed(self) -> str:
        """SQL for how many samples the step ``s`` consumed."""
        if self.have >= SINCE_FORMAT:
            what = "coalesce((SELECT d.num FROM tallies d"
            end = ", 0)"
        else:
            what, end = "(SELECT count(*) FROM dispositions d", ""
        of_step = "d.lineage = s.lineage AND d.step = s.step AND d.kind = 'consumed'"
        return f"{what} WHERE {of_step}){end}"

    def state(self) -> LedgerState:
        """All that a coordinator would start from: the head, and the groups that no step has taken."""
        with self.snapshot() as tx:
            return loading.load(tx, self.have)

    def initial(self) -> tuple[WeightVersion, str] | None:
        """Version 0 and its chain value; None before the learner has published it."""
        row = self._tx.execute("SELECT * FROM versions WHERE lineage = 0 AND step = 0").fetchone()
        return None if row is None else (loading.read_version(row), row["chain"])

    def record(self, step: int) -> StepRecord | None:
        """A committed step of the live chain: what it consumed, its plan, and what came out."""
        return loading.record_of(self._tx, step)

    def batch(self, step: int) -> StepBatch:
        """The recorded batch of a committed step of the live chain. Raises LedgerError."""
        return loading.batch_of(self._tx, step, self.have)

    def samples(
        self, step: int, sort: Sort = "place", limit: int | None = None
    ) -> tuple[SampleView, ...]:
        """The trajectories that a step consumed: in order, best reward first, or longest first."""
        order = {
            "place": "d.place",
            "reward": "j.reward DESC, d.place",
            "length": "j.num_tokens DESC, d.place",
        }
        rows = self._tx.execute(
            f"SELECT d.task_id, d.place, {loading.SAMPLE_COLUMNS} FROM dispositions d JOIN"
            " trajectories j ON j.task_id = d.task_id AND j.sample = d.sample WHERE d.lineage = ?"
            f" AND d.step = ? AND d.kind = 'consumed' ORDER BY {order[sort]} LIMIT ?",
            (loading.lineage_of(self._tx, step), step, EVERYTHING if limit is None else limit),
        ).fetchall()
        return self._with_bodies(rows)

    def browse(self, query: browsing.SampleQuery) -> tuple[SampleExcerpt, ...]:
        """A page of the samples that the live chain consumed."""
        return browsing.browse(self._tx, query, self.have)

    def sample(self, task_id: str, sample: int) -> TraceView:
        """Provenance of one trajectory by its task and place in the group, in outline: without a search, its name unchecked. Raises LedgerError."""
        rows = self._tx.execute(
            f"SELECT j.task_id, {loading.SAMPLE_COLUMNS}, t.admitted_at, NULL AS place FROM"
            " trajectories j JOIN tasks t ON t.task_id = j.task_id WHERE j.task_id = ? AND j.sample = ?",
            (task_id, sample),
        ).fetchall()
        if not rows:
            raise LedgerError(f"there is no sample {sample} of task {task_id!r} in {self.where}")
        return self._trace(rows, browsing.read_outline)

    def evaluation_samples(
        self, name: str, split: str, step: int, limit: int | None = None
    ) -> tuple[SampleView, ...]:
        """The trajectories of one evaluation of the version of ``step``, by prompt."""
        rows = self._tx.execute(
            f"SELECT t.task_id, NULL AS place, {loading.SAMPLE_COLUMNS} FROM tasks t JOIN trajectories"
            " j ON j.task_id = t.task_id WHERE t.kind = 'eval' AND t.evaluation = ? AND t.split = ?"
            " AND t.step = ? AND t.lineage = (SELECT max(lineage) FROM evaluations WHERE name = ?"
            " AND split = ? AND step = ?) ORDER BY t.ordinal, j.sample LIMIT ?",
            (name, split, step, name, split, step, EVERYTHING if limit is None else limit),
        ).fetchall()
        return self._with_bodies(rows)

    def samples_of(self, task_ids: Sequence[str]) -> dict[str, tuple[SampleView, ...]]:
        """The trajectories of some tasks, by task and in the order of samples; tasks without any are left out."""
        found: dict[str, list[SampleView]] = {}
        for part in slices(task_ids):
            rows = self._tx.execute(
                f"SELECT task_id, NULL AS place, {loading.SAMPLE_COLUMNS} FROM trajectories j"
                f" WHERE j.task_id IN ({marks(part)}) ORDER BY j.task_id, j.sample",
                tuple(part),
            ).fetchall()
            for view, row in zip(self._with_bodies(rows), rows, strict=True):
                found.setdefault(row["task_id"], []).append(view)
        return {task_id: tuple(views) for task_id, views in found.items()}

    def last_failure(self, task_id: str) -> str:
        """What the last attempt of a task said that ended badly; empty where none said anything."""
        said = [one.message for one in self._attempts(task_id) if one.message]
        return said[-1] if said else ""

    def trace(self, trajectory_id: str) -> TraceView:
        """Provenance of one trajectory, by its id or an unambiguous beginning of it."""
        rows = self._tx.execute(
            f"SELECT j.task_id, {loading.SAMPLE_COLUMNS}, t.admitted_at, NULL AS place FROM"
            " trajectories j JOIN tasks t ON t.task_id = j.task_id WHERE j.trajectory_id >= ?"
            " AND j.trajectory_id < ? LIMIT 2",
            _prefix_range(trajectory_id),
        ).fetchall()
        if len(rows) != 1:
            found = "nothing" if not rows else "more than one trajectory"
            raise LedgerError(f"{trajectory_id!r} names {found} in {self.where}")
        view = self._trace(rows, browsing.read_trajectory)
        made = view.trajectory
        if isinstance(made, Trajectory) and name_trajectory(made) != view.trajectory_id:
            raise LedgerError(f"the body of {view.trajectory_id} does not have that name: damaged")
        return view

    def _trace(
        self,
        rows: list[Row],
        read: Callable[[Transaction, str, int, int], Trajectory | Outline | None],
    ) -> TraceView:
        row = rows[0]
        task_id, number, name = row["task_id"], row["sample"], row["trajectory_id"]
        consumptions = self._consumptions(task_id, number)
        made = read(self._tx, task_id, number, self.have)
        live = [c for c in consumptions if c.kind == "consumed"]
        return TraceView(
            task_id=task_id,
            trajectory_id=name,
            sample=loading.read_sample(row),
            trajectory=made,
            admitted_at=row["admitted_at"],
            attempts=self._attempts(task_id),
            consumptions=consumptions,
            version_after=self._version(live[-1]) if live else None,
            anchor=self._anchor(live[-1]) if live else None,
        )

    def evaluations(self) -> tuple[EvaluationView, ...]:
        """All evaluations that count, in the order in which they were scheduled."""
        rows = self._tx.execute("SELECT * FROM evaluations ORDER BY scheduled_at, name, split")
        views = [_evaluation_view(row) for row in rows]
        return tuple(view for view in views if not (view.summary or {}).get("dropped"))

    def dispositions(self) -> dict[str, int]:
        """How many samples of the live lineage ended how; ``pending`` have not ended yet."""
        tx = self._tx
        counts = read_tallies(tx) if self.have >= SINCE_FORMAT else count_dispositions(tx)
        pending = tx.execute(
            "SELECT coalesce(sum(num_samples), 0) FROM tasks WHERE kind = 'train' AND kind <> 'eval'"
            " AND ordinal >= ?",
            (loading.first_waiting(tx, head_step(tx)),),
        ).fetchone()[0]
        return {**counts, "pending": pending}

    def lengths(self) -> dict[str, dict[int | None, int]]:
        """Of the live lineage's samples, by how they ended: how many had how many tokens.

        None: samples that were never whole (expired, surplus, excluded before they ended).
        """
        found: dict[str, dict[int | None, int]] = {}
        for lineage, bound in read_ancestry(self._tx):
            rows = self._tx.execute(
                "SELECT d.kind, j.num_tokens, count(*) FROM dispositions d JOIN tasks t"
                " ON t.task_id = d.task_id AND t.kind = 'train' LEFT JOIN trajectories j"
                " ON j.task_id = d.task_id AND j.sample = d.sample WHERE d.lineage = ? AND d.step <= ?"
                " GROUP BY d.kind, j.num_tokens",
                (lineage, EVERYTHING if bound is None else bound),
            )
            for kind, tokens, count in rows:
                by_length = found.setdefault(kind, {})
                by_length[tokens] = by_length.get(tokens, 0) + count
        return found

    def anchors(self) -> tuple[AnchorManifest, ...]:
        """Anchors that the live lineage can start from, oldest first."""
        return loading.read_anchors(self._tx)

    def cut(self, choose: cutting.Choose) -> tuple[AnchorManifest, LedgerCut]:
        """The anchor that ``choose`` takes, and the ledger at its step: all of it as of one moment. Raises LedgerError."""
        with self.snapshot() as tx:
            return cutting.read_cut(tx, self.have, choose)

    def events(self, limit: int = 1000) -> tuple[EventView, ...]:
        """The newest notable events, oldest first."""
        rows = self._tx.execute(
            "SELECT * FROM events ORDER BY seq DESC LIMIT ?", (limit,)
        ).fetchall()
        return tuple(_event(row) for row in reversed(rows))

    def evidence(self) -> tuple[EventView, ...]:
        """What is kept of pods that ended badly, oldest first: ``message`` names the worker."""
        rows = self._tx.execute("SELECT * FROM events WHERE kind = 'evidence' ORDER BY seq")
        return tuple(_event(row) for row in rows)

    def removed(self) -> RemovedView:
        """What is no longer kept of the run's samples."""
        return removing.read_removed(self._tx, self.have)

    def _with_bodies(self, rows: list[Row]) -> tuple[SampleView, ...]:
        wanted = sorted({row["task_id"] for row in rows})
        stored = loading.read_bodies(self._tx, wanted)
        removing.check_not_lost(self._tx, sorted(set(wanted) - stored.keys()), self.have)
        bodies: dict[str, dict[int, Trajectory]] = {
            task_id: {made.sample: made for made in decode_body(body)}
            for task_id, body in stored.items()
        }
        return tuple(self._sample_view(row, bodies.get(row["task_id"])) for row in rows)

    def _sample_view(self, row: Row, body: Mapping[int, Trajectory] | None) -> SampleView:
        if body is not None and row["sample"] not in body:
            raise LedgerError(
                f"the ledger {self.where} has another body for {row['task_id']}: no sample {row['sample']}"
            )
        return SampleView(
            **{name: row[name] for name in ROW_FIELDS},
            trajectory=None if body is None else body[row["sample"]],
        )

    def _attempts(self, task_id: str) -> tuple[AttemptView, ...]:
        rows = self._tx.execute(
            "SELECT * FROM attempts WHERE task_id = ? ORDER BY epoch", (task_id,)
        )
        return tuple(
            AttemptView(**{key: row[key] for key in AttemptView.__struct_fields__}) for row in rows
        )

    def _consumptions(self, task_id: str, sample: int) -> tuple[Consumption, ...]:
        rows = self._tx.execute(
            "SELECT * FROM dispositions WHERE task_id = ? AND sample = ? ORDER BY lineage",
            (task_id, sample),
        )
        return tuple(
            Consumption(**{key: row[key] for key in Consumption.__struct_fields__}) for row in rows
        )

    def _version(self, at: Consumption) -> WeightVersion | None:
        row = self._tx.execute(
            "SELECT * FROM versions WHERE lineage = ? AND step = ?", (at.lineage, at.step)
        ).fetchone()
        return None if row is None else loading.read_version(row)

    def _anchor(self, at: Consumption) -> str | None:
        row = self._tx.execute(
            "SELECT name FROM anchors WHERE lineage = ? AND step >= ? ORDER BY step LIMIT 1",
            (at.lineage, at.step),
        ).fetchone()
        return None if row is None else row[0]


def _prefix_range(prefix: str) -> tuple[str, str]:
    start = prefix if prefix.startswith("blake3:") else f"blake3:{prefix}"
    return start, f"{start}~"


def _step_view(row: Row) -> StepView:
    return StepView(
        lineage=row["lineage"],
        step=row["step"],
        version=loading.read_version(row),
        chain=row["chain"],
        metrics=read_document(row["metrics"], "steps.metrics"),
        phase_seconds=read_document(row["phase_seconds"], "steps.phase_seconds"),
        num_consumed=row["consumed"],
        committed_at=row["committed_at"],
    )


def _evaluation_view(row: Row) -> EvaluationView:
    return EvaluationView(
        name=row["name"],
        split=row["split"],
        lineage=row["lineage"],
        step=row["step"],
        num_prompts=row["num_tasks"],
        summary=read_optional(row["summary"], "evaluations.summary"),
        scheduled_at=row["scheduled_at"],
        finished_at=row["finished_at"],
    )


def _event(row: Row) -> EventView:
    return EventView(
        at=row["at"],
        kind=row["kind"],
        message=row["message"],
        data=read_document(row["data"], "events.data"),
    )

"""Reading a ledger back, for a coordinator that starts or a learner that replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout.codec import decode_body
from rollout.errors import LedgerError
from rollout.ledger.records import (
    AnchorManifest,
    Cursor,
    Lease,
    LedgerState,
    SampleRow,
    StepBatch,
    StepRecord,
    StoredEvaluation,
    StoredGroup,
)
from rollout.ledger.sql import removing
from rollout.ledger.sql.cells import read_document, read_json, read_msgpack, read_optional
from rollout.ledger.sql.chain import head_step, next_ordinal, read_ancestry
from rollout.ledger.sql.tallies import SINCE_FORMAT, count_dispositions, read_tallies
from rollout.ledger.sql.tasks import LEASE_COLUMNS, read_lease, read_task
from rollout.ledger.sql.transaction import EVERYTHING, Row, Transaction, marks, slices
from rollout.types import WeightVersion

RECENT_STEPS = 8
"""How many of the last steps' metrics a starting coordinator gets back."""

READ_TASKS = 512
"""Bodies that are in memory at a time, where an evaluation's are read."""


def load(tx: Transaction, have: int = SINCE_FORMAT) -> LedgerState:
    """Everything a coordinator needs. ``have`` is the ledger's format, where that may be an older one."""
    tallied = have >= SINCE_FORMAT
    run = tx.execute("SELECT * FROM run").fetchone()
    head = head_step(tx)
    record = record_of(tx, head) if head else None
    waiting = first_waiting(tx, head)
    recent = metrics_after(tx, max(0, head - RECENT_STEPS))
    initial = tx.execute("SELECT * FROM versions WHERE lineage = 0 AND step = 0").fetchone()
    return LedgerState(
        lineage=run["lineage"],
        ancestry=read_ancestry(tx),
        head=record,
        first_waiting=waiting,
        initial=None if initial is None else read_version(initial),
        initial_chain="" if initial is None else initial["chain"],
        next_admitted=run["next_admitted"],
        exhausted=bool(run["exhausted"]),
        groups=_groups(tx, waiting),
        evaluations=_evaluations(tx),
        eval_leases=_eval_leases(tx),
        versions=_kept_versions(tx),
        anchors=read_anchors(tx),
        dispositions=read_tallies(tx) if tallied else count_dispositions(tx),
        recent_metrics=tuple(item[2] for item in recent),
        recent_rewards=_recent_rewards(tx, head),
        tracked_step=run["tracked_step"],
        outcome=read_optional(run["outcome"], "run.outcome"),
        settings=read_document(run["settings"], "run.settings"),
        evidence=_count_evidence(tx),
        dead_anchors=_dead_anchors(tx),
        handed=_handed(tx),
        incarnations=_incarnations(tx),
    )


def _incarnations(tx: Transaction) -> dict[str, int]:
    rows = tx.execute("SELECT worker, incarnation FROM workers ORDER BY worker")
    return {row[0]: row[1] for row in rows}


def _count_evidence(tx: Transaction) -> dict[str, int]:
    rows = tx.execute(
        "SELECT message, count(*) FROM events WHERE kind = 'evidence' GROUP BY message"
    )
    return dict(tuple(row) for row in rows)


def _handed(tx: Transaction) -> tuple[str, ...]:
    rows = tx.execute("SELECT DISTINCT message FROM events WHERE kind = 'handed'")
    return tuple(sorted(row[0] for row in rows))


def _recent_rewards(tx: Transaction, head: int) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """The rewards of the last steps' groups, oldest step first."""
    found: list[tuple[tuple[float, ...], ...]] = []
    for step in range(max(1, head + 1 - RECENT_STEPS), head + 1):
        rows = tx.execute(
            "SELECT d.task_id, j.reward FROM dispositions d JOIN trajectories j"
            " ON j.task_id = d.task_id AND j.sample = d.sample WHERE d.lineage = ? AND d.step = ?"
            " AND d.kind IN ('consumed', 'filtered') ORDER BY d.task_id",
            (lineage_of(tx, step), step),
        )
        groups: dict[str, list[float]] = {}
        for task_id, reward in rows:
            groups.setdefault(task_id, []).append(reward)
        found.append(tuple(tuple(rewards) for rewards in groups.values()))
    return tuple(found)


def read_version(row: Row) -> WeightVersion:
    """A version of a row of ``versions``."""
    own, *bases = row["object"].split(" ")
    return WeightVersion(
        lineage=row["lineage"],
        step=row["step"],
        digest=row["digest"],
        object=own,
        bases=tuple(bases),
    )


def first_waiting(tx: Transaction, head: int) -> int:
    """The first training ordinal whose samples have not ended: the cursor's, or behind closed books."""
    first = next_ordinal(tx, head)
    for lineage, bound in read_ancestry(tx):
        last = tx.execute(
            "SELECT max(t.ordinal) FROM tasks t JOIN dispositions d ON d.lineage = ?"
            f" AND d.task_id = t.task_id AND d.step <= ? WHERE {WAITING}",
            (lineage, EVERYTHING if bound is None else bound, first),
        ).fetchone()[0]
        first = first if last is None else last + 1
    return first


WAITING = "t.kind = 'train' AND t.kind <> 'eval' AND t.ordinal >= ?"


def _groups(tx: Transaction, next_ordinal: int) -> tuple[StoredGroup, ...]:
    rows = tx.execute(
        f"SELECT {LEASE_COLUMNS}, state FROM tasks t WHERE {WAITING} ORDER BY ordinal",
        (next_ordinal,),
    ).fetchall()
    samples = _samples(tx, next_ordinal)
    bodies = tx.execute(
        f"SELECT b.task_id, b.body FROM tasks t JOIN bodies b ON b.task_id = t.task_id WHERE {WAITING}",
        (next_ordinal,),
    )
    body_of = {row[0]: row[1] for row in bodies}
    return tuple(
        StoredGroup(
            task=read_task(row),
            state=row["state"],
            lease=read_lease(row) if row["state"] == "leased" else None,
            samples=tuple(samples.get(row["task_id"], ())),
            body=body_of.get(row["task_id"]),
        )
        for row in rows
    )


def _samples(tx: Transaction, next_ordinal: int) -> dict[str, list[SampleRow]]:
    rows = tx.execute(
        f"SELECT j.task_id, {SAMPLE_COLUMNS} FROM tasks t"
        f" JOIN trajectories j ON j.task_id = t.task_id WHERE {WAITING} ORDER BY j.task_id, j.sample",
        (next_ordinal,),
    )
    found: dict[str, list[SampleRow]] = {}
    for row in rows:
        found.setdefault(row["task_id"], []).append(read_sample(row))
    return found


SAMPLE_COLUMNS = "j.trajectory_id, j.sample, j.reward, j.num_tokens, j.ending"


def read_sample(row: Row) -> SampleRow:
    """The sample of a row with ``SAMPLE_COLUMNS``."""
    return SampleRow(
        **{name: row[name] for name in SampleRow.__struct_fields__ if name != "writes"}
    )


def read_bodies(tx: Transaction, task_ids: Sequence[str]) -> dict[str, bytes]:
    """The bodies of those tasks that are done."""
    found: dict[str, bytes] = {}
    for some in slices(task_ids):
        found |= tx.execute(
            f"SELECT task_id, body FROM bodies WHERE task_id IN ({marks(some)})",
            some,
        ).fetchall()
    return found


def read_prefixes(tx: Transaction, task_ids: Sequence[str]) -> dict[str, bytes]:
    """The beginnings that are kept of these tasks."""
    found: dict[str, bytes] = {}
    for some in slices(task_ids):
        rows = tx.execute(
            f"SELECT task_id, body FROM prefixes WHERE task_id IN ({marks(some)})", some
        )
        found.update((row[0], bytes(row[1])) for row in rows)
    return found


def _evaluations(tx: Transaction) -> tuple[StoredEvaluation, ...]:
    rows = tx.execute("SELECT * FROM evaluations ORDER BY scheduled_at, name, split").fetchall()
    return tuple(_evaluation(tx, row) for row in rows)


def _evaluation(tx: Transaction, row: Row) -> StoredEvaluation:
    summary = read_optional(row["summary"], "evaluations.summary")
    rewards: dict[int, list[float]] = {}
    lengths: dict[int, list[int]] = {}
    excluded: tuple[int, ...] = ()
    if summary is None:
        key = (row["name"], row["split"], row["lineage"], row["step"])
        tasks = (
            " FROM tasks t {} WHERE t.kind = 'eval' AND t.evaluation = ? AND t.split = ?"
            " AND t.lineage = ? AND t.step = ?"
        )
        done = "SELECT t.ordinal, j.reward, j.num_tokens" + tasks.format(
            "JOIN trajectories j ON j.task_id = t.task_id"
        )
        for ordinal, reward, length in tx.execute(f"{done} ORDER BY t.ordinal, j.sample", key):
            rewards.setdefault(ordinal, []).append(reward)
            lengths.setdefault(ordinal, []).append(length)
        given_up = f"SELECT t.ordinal{tasks.format('')} AND t.state = 'excluded'"
        excluded = tuple(item[0] for item in tx.execute(given_up, key))
    return StoredEvaluation(
        name=row["name"],
        split=row["split"],
        lineage=row["lineage"],
        step=row["step"],
        num_tasks=row["num_tasks"],
        rewards={ordinal: tuple(values) for ordinal, values in rewards.items()},
        lengths={ordinal: tuple(values) for ordinal, values in lengths.items()},
        excluded=excluded,
        summary=summary,
    )


def _eval_leases(tx: Transaction) -> tuple[Lease, ...]:
    rows = tx.execute(
        f"SELECT {LEASE_COLUMNS} FROM tasks WHERE kind = 'eval' AND state = 'leased'"
    ).fetchall()
    return tuple(read_lease(row) for row in rows)


def _kept_versions(tx: Transaction) -> tuple[WeightVersion, ...]:
    rows = tx.execute("SELECT * FROM versions WHERE retired = 0 ORDER BY published_at").fetchall()
    return tuple(read_version(row) for row in rows)


def read_anchors(tx: Transaction) -> tuple[AnchorManifest, ...]:
    """Anchors that the live lineage can start from, oldest first."""
    found: list[AnchorManifest] = []
    for lineage, bound in read_ancestry(tx):
        rows = tx.execute(
            "SELECT manifest FROM anchors WHERE lineage = ? AND deleted = 0"
            " AND step <= ? ORDER BY step DESC",
            (lineage, EVERYTHING if bound is None else bound),
        )
        found.extend(read_json(row[0], AnchorManifest, "anchors.manifest") for row in rows)
    return tuple(reversed(found))


def _dead_anchors(tx: Transaction) -> tuple[AnchorManifest, ...]:
    """Anchors that nobody has deleted, of steps that a fork has left behind."""
    bounds = {one: EVERYTHING if last is None else last for one, last in read_ancestry(tx)}
    rows = tx.execute("SELECT lineage, step, manifest FROM anchors WHERE deleted = 0").fetchall()
    return tuple(
        read_json(manifest, AnchorManifest, "anchors.manifest")
        for lineage, step, manifest in rows
        if step > bounds.get(lineage, -1)
    )


def lineage_of(tx: Transaction, step: int) -> int:
    """The lineage in which the live chain's ``step`` was committed."""
    live = 0
    for lineage, bound in read_ancestry(tx):
        if bound is None or step <= bound:
            live = lineage
    return live


def record_of(tx: Transaction, step: int) -> StepRecord | None:
    """One committed step of the live chain."""
    lineage = lineage_of(tx, step)
    row = tx.execute(
        "SELECT s.*, v.digest, v.object, v.chain FROM steps s JOIN versions v"
        " ON v.lineage = s.lineage AND v.step = s.step WHERE s.lineage = ? AND s.step = ?",
        (lineage, step),
    ).fetchone()
    if row is None:
        return None
    consumed = tx.execute(
        "SELECT coalesce(j.trajectory_id, d.task_id) FROM dispositions d LEFT JOIN trajectories j"
        " ON j.task_id = d.task_id AND j.sample = d.sample WHERE d.lineage = ? AND d.step = ?"
        " AND d.kind = 'consumed' ORDER BY d.place",
        (lineage, step),
    ).fetchall()
    return StepRecord(
        lineage=lineage,
        step=step,
        consumed=tuple(item[0] for item in consumed),
        plan=read_msgpack(row["plan"], "steps.plan"),
        version=read_version(row),
        chain=row["chain"],
        cursor=Cursor(next_ordinal=row["next_ordinal"], exhausted=bool(row["exhausted"])),
    )


def records_after(tx: Transaction, step: int) -> tuple[StepRecord, ...]:
    """The committed steps of the live chain after ``step``."""
    found = (record_of(tx, number) for number in range(step + 1, head_step(tx) + 1))
    return tuple(record for record in found if record is not None)


def batch_of(tx: Transaction, step: int, have: int = removing.SINCE_FORMAT) -> StepBatch:
    """What the learner was given for a committed step. Raises LedgerError, NoLongerKept among them."""
    record = record_of(tx, step)
    if record is None:
        raise LedgerError(f"step {step} is not committed in the live lineage")
    given = tx.execute(
        "SELECT d.task_id, d.sample, coalesce(j.trajectory_id, d.task_id) FROM dispositions d"
        " LEFT JOIN trajectories j ON j.task_id = d.task_id AND j.sample = d.sample"
        " WHERE d.lineage = ? AND d.step = ? AND d.place IS NOT NULL ORDER BY d.place",
        (record.lineage, step),
    ).fetchall()
    tasks = sorted({row[0] for row in given})
    bodies = read_bodies(tx, tasks)
    # Rows of data, which have no trajectory, have no body either.
    made = {task_id for task_id, _, name in given if name != task_id}
    removing.check_batch_kept(tx, step, sorted(made - bodies.keys()), have)
    excluded = tx.execute(
        "SELECT count(*) FROM dispositions WHERE lineage = ? AND step = ? AND kind = 'excluded'",
        (record.lineage, step),
    ).fetchone()[0]
    return StepBatch(
        step=step,
        cursor=record.cursor,
        samples=tuple((row[0], row[1], row[2]) for row in given),
        bodies=bodies,
        num_excluded=excluded,
    )


def metrics_after(tx: Transaction, step: int) -> tuple[tuple[int, int, dict[str, Any]], ...]:
    """(lineage, step, metrics) of the live chain after ``step``."""
    found: list[tuple[int, int, dict[str, Any]]] = []
    for lineage, bound in reversed(read_ancestry(tx)):
        rows = tx.execute(
            "SELECT step, metrics FROM steps WHERE lineage = ? AND step > ?"
            " AND step <= ? ORDER BY step",
            (lineage, step, EVERYTHING if bound is None else bound),
        )
        found.extend((lineage, row[0], read_document(row[1], "steps.metrics")) for row in rows)
    return tuple(found)


def evaluation_rewards(
    tx: Transaction, key: tuple[str, str, int, int]
) -> dict[int, tuple[Mapping[str, float], ...]]:
    """By prompt and sample; a prompt whose answers are not kept any more is left out."""
    rows = tx.execute(
        "SELECT task_id, ordinal FROM tasks WHERE kind = 'eval' AND evaluation = ? AND split = ?"
        " AND lineage = ? AND step = ? ORDER BY ordinal",
        key,
    ).fetchall()
    found: dict[int, tuple[Mapping[str, float], ...]] = {}
    for start in range(0, len(rows), READ_TASKS):
        ordinals: dict[str, int] = {row[0]: row[1] for row in rows[start : start + READ_TASKS]}
        for task_id, body in read_bodies(tx, list(ordinals)).items():
            found[ordinals[task_id]] = _rewards(body)
    return dict(sorted(found.items()))


def _rewards(body: bytes) -> tuple[Mapping[str, float], ...]:
    made: Sequence[tuple[int, Mapping[str, float]]] = [
        (one.sample, one.rewards) for one in decode_body(body)
    ]
    return tuple(rewards for _, rewards in sorted(made, key=lambda item: item[0]))

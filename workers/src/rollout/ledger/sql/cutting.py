"""Taking a ledger apart at a step boundary, and beginning another with what was taken; or going back to it in the same one.

A run that has gone on past the boundary is rewound: a finished sample stays where every token of it was sampled from a
version up to the boundary, which it would have been consumed from; any other task is open again, with the same noise.
Leases are facts to expire: who held one is another run's worker. Bodies of consumed samples are not taken along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rollout.codec import decode_body
from rollout.errors import LedgerError
from rollout.ledger.cuts import TABLES, Cells, LedgerCut, check_cut
from rollout.ledger.records import AnchorManifest
from rollout.ledger.sql import loading, tallies
from rollout.ledger.sql.chain import head_step, next_ordinal, read_ancestry
from rollout.ledger.sql.memory.cut import floor_of, with_memory
from rollout.ledger.sql.removing import SINCE_FORMAT
from rollout.ledger.sql.steps import (
    add_event,
    drop_dead_evaluations,
    insert_anchor,
    open_lineage,
)
from rollout.ledger.sql.tasks import give_up_attempts, lock_run
from rollout.ledger.sql.transaction import EVERYTHING, Row, Transaction, marks, slices

Choose = Callable[[tuple[AnchorManifest, ...]], AnchorManifest]
Ancestry = tuple[tuple[int, int], ...]
"""(lineage, last step that counts) from the lineage of the cut to the root."""

ENDED_WITH_THE_CUT = "lost"


def read_cut(tx: Transaction, have: int, choose: Choose) -> tuple[AnchorManifest, LedgerCut]:
    """The anchor that ``choose`` takes of those of the live lineage, and the ledger at its step. Raises LedgerError."""
    if have < SINCE_FORMAT:
        raise LedgerError(
            f"this ledger has format {have}, a cut needs {SINCE_FORMAT}: resume its run once, which brings"
            " it up to date"
        )
    anchor = choose(loading.read_anchors(tx))
    cutter = _Cutter(tx, anchor)
    return anchor, with_memory(tx, have, cutter.cut(), cutter.ancestry)


def restore_cut(tx: Transaction, cut: LedgerCut, reason: str) -> None:
    """Begin an empty ledger at a cut. Raises LedgerError for one that is not empty, or for a cut of no ledger."""
    lock_run(tx)
    check_cut(cut)
    if any(
        tx.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in ("versions", "tasks")
    ):
        raise LedgerError(
            "a ledger that a run has begun cannot be restored into: restore into another run's folder"
        )
    for table, columns in TABLES.items():
        rows = [row for row in cut.tables.get(table, ()) if table != "lineages" or row[0] != 0]
        tx.insert(table, ", ".join(columns), rows)
    tx.insert("bodies", "task_id, body", sorted(cut.bodies.items()))
    epochs = {row[0]: row[TABLES["tasks"].index("epoch")] for row in cut.tables.get("tasks", ())}
    rows = [(task, epochs.get(task, 0), body) for task, body in sorted(cut.prefixes.items())]
    tx.insert("prefixes", "task_id, epoch, body", rows)
    tx.execute(
        "UPDATE run SET lineage = ?, next_admitted = ?, exhausted = ?, tracked_step = ?,"
        " removed_step = ?, removed_ordinal = ?",
        (
            *(cut.lineage, cut.next_admitted, int(cut.exhausted), cut.step),
            *(cut.step, cut.first_waiting),
        ),
    )
    if cut.tables.get("memory"):
        tx.execute("UPDATE run SET memory_step = ?", (floor_of(cut),))
    add_event(tx, "restored", reason, {"step": cut.step})


def go_back(tx: Transaction, anchor: AnchorManifest, reason: str, memory: Cells = ()) -> int:
    """Open a lineage after a step of this ledger's own past, with the queue as it was then; returns the lineage.

    ``anchor`` is of that step, of the live lineage or of a dead one; its objects are there. What was committed later stays
    written down and counts no more; every process of before is fenced. Raises LedgerError where the ledger has another step.
    """
    lock_run(tx)
    _require_committed(tx, anchor)
    version = replace(anchor.version, step=anchor.step)
    lineage = open_lineage(tx, anchor.lineage, version, anchor.chain, reason)
    tx.execute("UPDATE workers SET incarnation = incarnation + 1")
    insert_anchor(tx, anchor)
    first = loading.first_waiting(tx, anchor.step)
    _open_again(tx, first, read_ancestry(tx))
    tx.insert("memory", ", ".join(TABLES["memory"]), memory, ignore=True)
    for column, last in (
        ("removed_step", anchor.step),
        ("removed_ordinal", first),
        ("memory_step", anchor.step),
    ):
        tx.execute(f"UPDATE run SET {column} = ? WHERE {column} > ?", (last, last))
    _drop_evaluations(tx)
    add_event(tx, "restored", reason, {"step": anchor.step, "lineage": lineage})
    return lineage


def _require_committed(tx: Transaction, anchor: AnchorManifest) -> None:
    found = tx.execute(
        "SELECT digest, chain FROM versions WHERE lineage = ? AND step = ?",
        (anchor.lineage, anchor.step),
    ).fetchone()
    if found is None or (found[0], found[1]) != (anchor.version.digest, anchor.chain):
        has = "nothing" if found is None else f"{found[0]}, chain {found[1]}"
        raise LedgerError(
            f"step {anchor.step} of lineage {anchor.lineage} is {anchor.version.digest}, chain {anchor.chain}; this"
            f" ledger has {has} there: it is no step of this run's own past"
        )


def _open_again(tx: Transaction, first: int, live: Sequence[tuple[int, int | None]]) -> None:
    """Let training tasks from ``first`` be tried again, but those that are done and wholly of the past."""
    rows = tx.execute(
        f"SELECT t.task_id, t.state FROM tasks t WHERE {loading.WAITING} ORDER BY t.ordinal",
        (first,),
    ).fetchall()
    ancestry = tuple((one, EVERYTHING if bound is None else bound) for one, bound in live)
    kept: set[str] = set()
    for some in slices([task_id for task_id, state in rows if state == "done"]):
        bodies = loading.read_bodies(tx, some)
        kept.update(name for name, body in bodies.items() if is_of_the_past(bytes(body), ancestry))
    opened = [task_id for task_id, _ in rows if task_id not in kept]
    for some in slices(opened):
        for table in ("trajectories", "bodies", "prefixes"):
            tx.execute(f"DELETE FROM {table} WHERE task_id IN ({marks(some)})", some)
        tx.execute(
            "UPDATE tasks SET state = 'open', worker = NULL, failures = 0, losses = 0, data_failures = 0, prefixed = 0"
            f" WHERE task_id IN ({marks(some)})",
            some,
        )
    give_up_attempts(tx, opened)


def is_of_the_past(body: bytes, ancestry: Ancestry) -> bool:
    """Whether every token of a task's samples was sampled from a version that the chain of steps stands on."""
    return all(
        any(span.lineage == one and span.step <= bound for one, bound in ancestry)
        for made in decode_body(body)
        for row in made.rows
        for span in row.spans
    )


def _drop_evaluations(tx: Transaction) -> None:
    """Nobody waits for evaluations of steps that count no more."""
    bounds = {one: EVERYTHING if last is None else last for one, last in read_ancestry(tx)}
    for row in tx.execute("SELECT lineage FROM lineages").fetchall():
        drop_dead_evaluations(tx, row[0], bounds.get(row[0], -1))


class _Cutter:
    """One cut under way."""

    def __init__(self, tx: Transaction, anchor: AnchorManifest) -> None:
        self._tx, self._anchor, self._step = tx, anchor, anchor.step
        live = read_ancestry(tx)
        names = [lineage for lineage, _ in live]
        own = live[names.index(anchor.lineage) :]
        self.ancestry: Ancestry = tuple(
            (
                lineage,
                min(
                    anchor.step, EVERYTHING if bound is None or lineage == anchor.lineage else bound
                ),
            )
            for lineage, bound in own
        )
        head = head_step(tx)
        self._rewound = anchor.step < head or live[0][0] != anchor.lineage
        self._first = self._first_waiting()

    def cut(self) -> LedgerCut:
        tx, run = self._tx, self._tx.execute("SELECT next_admitted, exhausted FROM run").fetchone()
        train, bodies = self._waiting_tasks()
        evaluations = self._evaluations()
        asked, answers = self._open_evaluation_tasks(evaluations)
        bodies |= answers
        tasks = [*train, *asked]
        names = [row["task_id"] for row in tasks]
        steps, trained, dispositions = self._recent_steps()
        past = self._by_task("tasks", trained, "ordinal")
        done = [row["task_id"] for row in tasks if row["state"] == "done"]
        kept = [row["task_id"] for row in tasks if row["prefixed"]]
        versions = self._versions(evaluations)
        last = max((row["ordinal"] for row in train), default=self._first - 1)
        whole = not self._rewound
        return LedgerCut(
            lineage=self._anchor.lineage,
            step=self._step,
            first_waiting=self._first,
            next_admitted=max(run["next_admitted"], self._first) if whole else last + 1,
            exhausted=bool(run["exhausted"]) and whole,
            rewound=self._rewound,
            num_leased=sum(row["was_leased"] for row in tasks),
            versions={
                f"{row['lineage']}-{row['step']}": tuple(row["object"].split(" "))
                for row in versions
                if not row["retired"] and not self._is_own(row)
            },
            tables={
                "lineages": self._select("lineages", "lineage <= ?", (self._anchor.lineage,)),
                "versions": _cells("versions", versions),
                "steps": _cells("steps", steps),
                "tasks": _cells("tasks", [*past, *tasks]),
                "attempts": self._attempts(names),
                "trajectories": self._of_tasks("trajectories", [*trained, *done]),
                "dispositions": _cells("dispositions", dispositions),
                "tallies": self._tallies(),
                "evaluations": _cells("evaluations", evaluations),
                "anchors": self._select(
                    "anchors", "lineage = ? AND step = ?", (self._anchor.lineage, self._step)
                ),
            },
            bodies=bodies,
            prefixes=loading.read_prefixes(tx, kept),
        )

    def _counts(self, lineage: int, step: int) -> bool:
        """Whether a version or a step is one that the cut stands on."""
        return any(lineage == one and step <= bound for one, bound in self.ancestry)

    def _is_own(self, row: dict[str, Any]) -> bool:
        version = self._anchor.version
        return (row["lineage"], row["step"]) == (version.lineage, version.step)

    def _first_waiting(self) -> int:
        """As ``loading.first_waiting``, of what had ended by the step."""
        first = next_ordinal(self._tx, self._step)
        for lineage, bound in self.ancestry:
            last = self._tx.execute(
                "SELECT max(t.ordinal) FROM tasks t JOIN dispositions d ON d.lineage = ?"
                f" AND d.task_id = t.task_id AND d.step <= ? WHERE {loading.WAITING}",
                (lineage, bound, first),
            ).fetchone()[0]
            first = first if last is None else last + 1
        return first

    def _waiting_tasks(self) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
        """Training tasks that no step up to the cut has taken, and the bodies of the finished ones."""
        found = self._rows("tasks", f"{_waiting('')} ORDER BY ordinal", (self._first,))
        bodies = loading.read_bodies(
            self._tx, [row["task_id"] for row in found if row["state"] == "done"]
        )
        bodies = {name: bytes(body) for name, body in bodies.items()}
        if not self._rewound:
            return [_let_go(row) for row in found], bodies
        bodies = {
            name: body for name, body in bodies.items() if is_of_the_past(body, self.ancestry)
        }
        last = max((row["ordinal"] for row in found if row["task_id"] in bodies), default=-1)
        return [
            _let_go(row) if row["task_id"] in bodies else _opened(row)
            for row in found
            if row["ordinal"] <= last
        ], bodies

    def _evaluations(self) -> list[dict[str, Any]]:
        """Those of versions up to the cut. Answers of finished ones stay behind."""
        rows = self._rows("evaluations", "1 = 1 ORDER BY scheduled_at, name, split", ())
        return [
            {**row, "removed": row["removed"] if row["summary"] is None else 2}
            for row in rows
            if self._counts(row["lineage"], row["step"])
        ]

    def _open_evaluation_tasks(
        self, evaluations: Iterable[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
        """Tasks of evaluations that are not over, and the bodies of those that are done."""
        found: list[dict[str, Any]] = []
        for one in evaluations:
            if one["summary"] is None:
                key = (one["name"], one["split"], one["lineage"], one["step"])
                where = (
                    "kind = 'eval' AND evaluation = ? AND split = ? AND lineage = ? AND step = ?"
                )
                found += self._rows("tasks", f"{where} ORDER BY ordinal", key)
        done = [row["task_id"] for row in found if row["state"] == "done"]
        bodies = loading.read_bodies(self._tx, done)
        return [_let_go(row) for row in found], {k: bytes(body) for k, body in bodies.items()}

    def _recent_steps(self) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]:
        """The last few steps, the tasks that they took, and how their samples ended."""
        steps: list[dict[str, Any]] = []
        ended: list[dict[str, Any]] = []
        for step in range(max(1, self._step + 1 - loading.RECENT_STEPS), self._step + 1):
            key = (loading.lineage_of(self._tx, step), step)
            steps += self._rows("steps", "lineage = ? AND step = ?", key)
            where = "lineage = ? AND step = ? ORDER BY place, task_id, sample"
            ended += self._rows("dispositions", where, key)
        return steps, sorted({row["task_id"] for row in ended}), ended

    def _versions(self, evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first one, those of the last steps, the cut's own, and of evaluations those that are still stored.

        Only the last two are taken along with their objects; the others are written down as retired.
        """
        evaluated = {(one["lineage"], one["step"]) for one in evaluations}
        begin = self._step + 1 - loading.RECENT_STEPS
        own = self._anchor.version
        where = "step = 0 OR step >= ? OR retired = 0 OR (lineage = ? AND step = ?) ORDER BY lineage, step"
        found = self._rows("versions", where, (begin, own.lineage, own.step))
        kept: list[dict[str, Any]] = []
        for row in found:
            key = (row["lineage"], row["step"])
            mine, needed = self._is_own(row), key in evaluated and not row["retired"]
            if mine or (
                self._counts(*key) and (needed or row["step"] >= begin or row["step"] == 0)
            ):
                kept.append({**row, "retired": int(not (mine or needed))})
        return kept

    def _attempts(self, names: Sequence[str]) -> Cells:
        """Tries at the tasks of the cut. What was under way has ended with it."""
        rows = self._by_task("attempts", names, "epoch")
        kept = [row for row in rows if self._counts(row["version_lineage"], row["version_step"])]
        ended = [
            row
            if row["ended_at"] is not None
            else {**row, "ended_at": self._anchor.created_at, "ending": ENDED_WITH_THE_CUT}
            for row in kept
        ]
        return _cells("attempts", ended)

    def _tallies(self) -> Cells:
        found: list[dict[str, Any]] = []
        for lineage, bound in self.ancestry:
            for kind in tallies.KINDS:
                where = "lineage = ? AND kind = ? AND step <= ? ORDER BY step DESC LIMIT 1"
                found += self._rows("tallies", where, (lineage, kind, bound))
        return _cells("tallies", found)

    def _of_tasks(self, table: str, names: Sequence[str]) -> Cells:
        return _cells(table, self._by_task(table, names, "sample"))

    def _by_task(self, table: str, names: Sequence[str], then: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for some in slices(sorted(names)):
            where = f"task_id IN ({marks(some)}) ORDER BY task_id, {then}"
            found += self._rows(table, where, some)
        return found

    def _select(self, table: str, where: str, values: Sequence[Any]) -> Cells:
        first = TABLES[table][0]
        return _cells(table, self._rows(table, f"{where} ORDER BY {first}", values))

    def _rows(self, table: str, where: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        columns = TABLES[table]
        sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {where}"
        return [_named(columns, row) for row in self._tx.execute(sql, values).fetchall()]


def _waiting(prefix: str) -> str:
    return loading.WAITING.replace("t.", prefix)


def _named(columns: Sequence[str], row: Row) -> dict[str, Any]:
    cells = (row[column] for column in columns)
    return {
        column: bytes(cell) if isinstance(cell, memoryview) else cell
        for column, cell in zip(columns, cells, strict=True)
    }


def _cells(table: str, rows: Iterable[dict[str, Any]]) -> Cells:
    return tuple(tuple(row[column] for column in TABLES[table]) for row in rows)


def _let_go(row: dict[str, Any]) -> dict[str, Any]:
    """A task as it is, in nobody's hands."""
    leased = row["state"] == "leased"
    return {**row, "state": "open" if leased else row["state"], "was_leased": leased}


def _opened(row: dict[str, Any]) -> dict[str, Any]:
    """A task that had not been tried at the boundary, or has to be tried again."""
    fresh = {"failures": 0, "losses": 0, "data_failures": 0, "prefixed": 0, "was_leased": False}
    return {**row, **fresh, "state": "open"}

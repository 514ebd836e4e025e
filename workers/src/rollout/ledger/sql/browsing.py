"""Pages of samples of a whole run: what a person leafs through, however many there are.

A page costs what it shows where it is in the order of the run; another order reads the rows of all samples,
never their bodies. Of a body only its texts are read, and of those the beginnings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from rollout.codec import (
    Columns,
    Outline,
    decode_columns,
    decode_outline,
    decode_sample,
    decode_texts,
)
from rollout.errors import LedgerError
from rollout.ledger.sql import loading, removing
from rollout.ledger.sql.chain import head_step, read_ancestry
from rollout.ledger.sql.tallies import SINCE_FORMAT
from rollout.ledger.sql.transaction import EVERYTHING, Row, Transaction, marks
from rollout.ledger.views import ConsumedGroup, SampleExcerpt, WorkerView
from rollout.types import Trajectory

T = TypeVar("T")
Order = Literal["place", "reward", "-reward", "length", "-length"]
"""``place`` is that of the run, the newest step first; the others from low to high, with a minus from high to low."""

ORDERS: dict[Order, str] = {
    "place": "d.step DESC, d.place",
    "reward": "j.reward, d.step DESC, d.place",
    "-reward": "j.reward DESC, d.step DESC, d.place",
    "length": "j.num_tokens, d.step DESC, d.place",
    "-length": "j.num_tokens DESC, d.step DESC, d.place",
}
WORKERS_MAX = 1000
HITS_MIN, HITS_MAX, SEARCHED_MAX = 50, 500, 7_500
"""Of one search: it ends with so many, shows at most so many, and reads at most so many samples and a step."""
SELECT = (
    f"SELECT d.task_id, d.place, d.step, {loading.SAMPLE_COLUMNS} FROM dispositions d JOIN trajectories j"
    " ON j.task_id = d.task_id AND j.sample = d.sample"
)
TEXT_MAX = 600
"""Characters of a text that an excerpt holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuery:
    """Which consumed samples of the live chain: of one step or of all, with one ending or any.

    ``newest``: of no later step; ``offset`` skips as many.
    """

    step: int | None = None
    newest: int | None = None
    ending: str | None = None
    order: Order = "place"
    offset: int = 0
    limit: int = 50


def browse(tx: Transaction, query: SampleQuery, have: int) -> tuple[SampleExcerpt, ...]:
    """One page. Raises LedgerError."""
    if have >= SINCE_FORMAT and query.order == "place" and query.step is None and not query.ending:
        query = _skip_steps(tx, query)
    where, values = _where(tx, query)
    rows = tx.execute(
        f"{SELECT} WHERE {where} ORDER BY {ORDERS[query.order]} LIMIT ? OFFSET ?",
        (*values, query.limit, query.offset),
    ).fetchall()
    return _with_texts(tx, rows, have)


def _skip_steps(tx: Transaction, query: SampleQuery) -> SampleQuery:
    """The same page without the steps before it, whose samples are counted and need not be read."""
    left = query.offset
    for lineage, bound in read_ancestry(tx):
        rows = tx.execute(
            "SELECT step, num FROM tallies WHERE lineage = ? AND kind = 'consumed' AND step <= ?"
            " ORDER BY step DESC",
            (lineage, EVERYTHING if bound is None else bound),
        )
        for step, number in rows:
            if left < number:
                return replace(query, offset=left, newest=step)
            left -= number
    return replace(query, offset=left, newest=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What a search found, whole steps at a time; it goes on at ``newest``, None where nothing is left."""

    rows: tuple[SampleExcerpt, ...]
    num_read: int
    newest: int | None


def search(tx: Transaction, text: str, newest: int | None, ending: str | None, have: int) -> Hits:
    """Consumed samples whose prompt or completion has ``text`` in it, letters of either case, from step ``newest`` down.

    Ends after the step with which it has HITS_MIN, or has read SEARCHED_MAX samples. Raises LedgerError.
    """
    wanted, found, read = text.lower(), list[SampleExcerpt](), 0
    step = head_step(tx) if newest is None else min(newest, head_step(tx))
    while step > 0 and len(found) < HITS_MIN and read < SEARCHED_MAX:
        where, values = _where(tx, SampleQuery(step=step, ending=ending))
        rows = tx.execute(f"{SELECT} WHERE {where} ORDER BY d.place", values).fetchall()
        some = _with_texts(tx, rows, have, wanted)
        found.extend(some)
        read, step = read + len(rows), step - 1
    return Hits(rows=tuple(found[:HITS_MAX]), num_read=read, newest=step or None)


def _where(tx: Transaction, query: SampleQuery) -> tuple[str, tuple[object, ...]]:
    if query.step is not None:
        lives = [(loading.lineage_of(tx, query.step), query.step, query.step)]
    else:
        most = EVERYTHING if query.newest is None else query.newest
        lives = [
            (one, 0, most if last is None else min(most, last)) for one, last in read_ancestry(tx)
        ]
    # Where all steps are read, in the order in which both tables lie: not by the index of steps.
    column = "d.step" if query.step is not None or query.order == "place" else "+d.step"
    place = " OR ".join([f"(d.lineage = ? AND {column} >= ? AND {column} <= ?)"] * len(lives))
    values: list[object] = [value for live in lives for value in live]
    where = f"({place}) AND d.kind = 'consumed'"
    if query.ending is not None:
        where += " AND j.ending = ?"
        values.append(query.ending)
    return where, tuple(values)


def _with_texts(
    tx: Transaction, rows: list[Row], have: int, wanted: str = ""
) -> tuple[SampleExcerpt, ...]:
    """The rows with the beginnings of their texts, those alone that have ``wanted`` in a text; one body is held at a time."""
    passed: set[tuple[str, int]] = set()
    texts: dict[tuple[str, int], tuple[str, str, str]] = {}
    lost: list[str] = []
    for task_id in sorted({row["task_id"] for row in rows}):
        body = loading.read_bodies(tx, [task_id]).get(task_id)
        if body is None:
            lost.append(task_id)
            continue
        for one in decode_texts(body):
            if wanted not in one.text.lower() and wanted not in one.prompt_text.lower():
                passed.add((task_id, one.sample))
            shown = (one.prompt_text[-TEXT_MAX:], one.text[:TEXT_MAX], one.answer[:TEXT_MAX])
            texts[task_id, one.sample] = shown
    removing.check_not_lost(tx, lost, have)
    if wanted:
        kept = [row for row in rows if row["task_id"] not in lost]
        rows = [row for row in kept if (row["task_id"], row["sample"]) not in passed]
    return tuple(_excerpt(row, texts, lost) for row in rows)


def _excerpt(
    row: Row, texts: dict[tuple[str, int], tuple[str, str, str]], lost: list[str]
) -> SampleExcerpt:
    found = texts.get((row["task_id"], row["sample"]))
    if found is None and row["task_id"] not in lost:
        raise LedgerError(
            f"the ledger has another body for {row['task_id']}: no sample {row['sample']}"
        )
    prompt, text, answer = found or (None, None, None)
    return SampleExcerpt(
        task_id=row["task_id"],
        trajectory_id=row["trajectory_id"],
        sample=row["sample"],
        step=row["step"],
        place=row["place"],
        reward=row["reward"],
        num_tokens=row["num_tokens"],
        ending=row["ending"],
        prompt=prompt,
        text=text,
        answer=answer,
    )


def read_trajectory(tx: Transaction, task_id: str, sample: int, have: int) -> Trajectory | None:
    """One sample whole, its digest unchecked; None for one that is no longer kept. Raises LedgerError."""
    return _read_sample(tx, (task_id, sample), have, decode_sample)


def read_outline(tx: Transaction, task_id: str, sample: int, have: int) -> Outline | None:
    """The same without its tokens, in the memory of its texts. Raises LedgerError."""
    return _read_sample(tx, (task_id, sample), have, decode_outline)


def read_columns(tx: Transaction, task_id: str, sample: int, have: int) -> Columns | None:
    """Its tokens alone. Raises LedgerError."""
    return _read_sample(tx, (task_id, sample), have, decode_columns)


def _read_sample(
    tx: Transaction, of: tuple[str, int], have: int, decode: Callable[[bytes, int], T | None]
) -> T | None:
    task_id, sample = of
    body = loading.read_bodies(tx, [task_id]).get(task_id)
    if body is None:
        removing.check_not_lost(tx, [task_id], have)
        return None
    made = decode(body, sample)
    if made is None:
        raise LedgerError(f"the ledger has another body for {task_id}: no sample {sample}")
    return made


def read_groups(tx: Transaction, step: int, offset: int, limit: int) -> tuple[ConsumedGroup, ...]:
    """The groups that a step of the live chain consumed, in its order."""
    rows = tx.execute(
        "SELECT d.task_id, t.ordinal, min(d.place) AS place, count(*) AS num, avg(j.reward) AS mean,"
        " min(j.reward) AS low, max(j.reward) AS high, max(j.num_tokens) AS longest,"
        " max(a.worker) AS worker, min(a.version_step) AS version FROM dispositions d"
        " JOIN tasks t ON t.task_id = d.task_id JOIN trajectories j ON j.task_id = d.task_id"
        " AND j.sample = d.sample LEFT JOIN attempts a ON a.task_id = d.task_id AND a.epoch = j.epoch"
        " WHERE d.lineage = ? AND d.step = ? AND d.kind = 'consumed' GROUP BY d.task_id, t.ordinal"
        " ORDER BY min(d.place) LIMIT ? OFFSET ?",
        (loading.lineage_of(tx, step), step, limit, offset),
    )
    return tuple(
        ConsumedGroup(**{name: row[name] for name in ConsumedGroup.__struct_fields__})
        for row in rows
    )


def read_workers(tx: Transaction) -> tuple[WorkerView, ...]:
    """Everybody who has registered, what they hold now, and how their attempts ended."""
    endings: dict[str, dict[str, int]] = {}
    for worker, ending, number in tx.execute(
        "SELECT worker, ending, count(*) FROM attempts WHERE ending IS NOT NULL GROUP BY worker, ending"
    ):
        endings.setdefault(worker, {})[ending] = number
    held = {
        row[0]: tuple(row)[1:]
        for row in tx.execute(
            "SELECT worker, count(*), min(leased_at), min(expires_at) FROM tasks WHERE state = 'leased'"
            " GROUP BY worker"
        )
    }
    rows = tx.execute("SELECT * FROM workers ORDER BY role DESC, worker LIMIT ?", (WORKERS_MAX,))
    return tuple(
        WorkerView(
            **{name: row[name] for name in ("worker", "role", "incarnation", "pid", "host")},
            registered_at=row["registered_at"],
            outcome=row["outcome"],
            num_held=held.get(row["worker"], (0, None, None))[0],
            held_since=held.get(row["worker"], (0, None, None))[1],
            expires_at=held.get(row["worker"], (0, None, None))[2],
            endings=endings.get(row["worker"], {}),
        )
        for row in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVersion:
    """One evaluation of the version of ``step``."""

    name: str
    split: str
    step: int


def read_rewards(tx: Transaction, of: MeasuredVersion) -> dict[int, float]:
    """The mean reward of each prompt, by its place."""
    rows = tx.execute(
        "SELECT t.ordinal, avg(j.reward) FROM tasks t JOIN trajectories j ON j.task_id = t.task_id"
        f" WHERE {OF_EVALUATION} GROUP BY t.ordinal",
        _values(of),
    )
    return {row[0]: row[1] for row in rows}


def read_answers(
    tx: Transaction, of: MeasuredVersion, ordinals: Sequence[int], have: int
) -> dict[int, SampleExcerpt]:
    """The first answer to each of these prompts, by its place."""
    rows = tx.execute(
        f"SELECT t.task_id, 0 AS place, t.step, t.ordinal, {loading.SAMPLE_COLUMNS} FROM tasks t"
        f" JOIN trajectories j ON j.task_id = t.task_id WHERE {OF_EVALUATION} AND j.sample = 0"
        f" AND t.ordinal IN ({marks(ordinals)})",
        (*_values(of), *ordinals),
    ).fetchall()
    found = _with_texts(tx, rows, have)
    return {row["ordinal"]: one for row, one in zip(rows, found, strict=True)}


OF_EVALUATION = (
    "t.kind = 'eval' AND t.evaluation = ? AND t.split = ? AND t.step = ? AND t.lineage ="
    " (SELECT max(lineage) FROM evaluations WHERE name = ? AND split = ? AND step = ?)"
)


def _values(of: MeasuredVersion) -> tuple[object, ...]:
    return (of.name, of.split, of.step) * 2

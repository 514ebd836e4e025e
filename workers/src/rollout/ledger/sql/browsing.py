"""Pages of samples of a whole run: what a person leafs through, however many there are.

A page costs what it shows where it is in the order of the run; another order reads the rows of all samples,
never their bodies. Of a body only its texts are read, and of those the beginnings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout.codec import decode_texts
from rollout.errors import LedgerError
from rollout.ledger.sql import loading, removing
from rollout.ledger.sql.chain import read_ancestry
from rollout.ledger.sql.transaction import EVERYTHING, Row, Transaction
from rollout.ledger.views import SampleExcerpt

Order = Literal["place", "reward", "-reward", "length", "-length"]
"""``place`` is that of the run, the newest step first; the others from low to high, with a minus from high to low."""

ORDERS: dict[Order, str] = {
    "place": "d.step DESC, d.place",
    "reward": "j.reward, d.step DESC, d.place",
    "-reward": "j.reward DESC, d.step DESC, d.place",
    "length": "j.num_tokens, d.step DESC, d.place",
    "-length": "j.num_tokens DESC, d.step DESC, d.place",
}
TEXT_MAX = 600
"""Characters of a text that an excerpt holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuery:
    """Which consumed samples of the live chain: of one step or of all, with one ending or any; ``offset`` skips as many."""

    step: int | None = None
    ending: str | None = None
    order: Order = "place"
    offset: int = 0
    limit: int = 50


def browse(tx: Transaction, query: SampleQuery, have: int) -> tuple[SampleExcerpt, ...]:
    """One page. Raises LedgerError."""
    where, values = _where(tx, query)
    rows = tx.execute(
        f"SELECT d.task_id, d.place, d.step, {loading.SAMPLE_COLUMNS} FROM dispositions d JOIN trajectories j"
        f" ON j.task_id = d.task_id AND j.sample = d.sample WHERE {where}"
        f" ORDER BY {ORDERS[query.order]} LIMIT ? OFFSET ?",
        (*values, query.limit, query.offset),
    ).fetchall()
    return _with_texts(tx, rows, have)


def _where(tx: Transaction, query: SampleQuery) -> tuple[str, tuple[object, ...]]:
    if query.step is not None:
        lives = [(loading.lineage_of(tx, query.step), query.step, query.step)]
    else:
        lives = [(one, 0, EVERYTHING if last is None else last) for one, last in read_ancestry(tx)]
    place = " OR ".join(["(d.lineage = ? AND d.step >= ? AND d.step <= ?)"] * len(lives))
    values: list[object] = [value for live in lives for value in live]
    where = f"({place}) AND d.kind = 'consumed'"
    if query.ending is not None:
        where += " AND j.ending = ?"
        values.append(query.ending)
    return where, tuple(values)


def _with_texts(tx: Transaction, rows: list[Row], have: int) -> tuple[SampleExcerpt, ...]:
    """The rows with the beginnings of their texts; one body is held at a time."""
    texts: dict[tuple[str, int], tuple[str, str, str]] = {}
    lost: list[str] = []
    for task_id in sorted({row["task_id"] for row in rows}):
        body = loading.read_bodies(tx, [task_id]).get(task_id)
        if body is None:
            lost.append(task_id)
            continue
        for one in decode_texts(body):
            shown = (one.prompt_text[-TEXT_MAX:], one.text[:TEXT_MAX], one.answer[:TEXT_MAX])
            texts[task_id, one.sample] = shown
    removing.check_not_lost(tx, lost, have)
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

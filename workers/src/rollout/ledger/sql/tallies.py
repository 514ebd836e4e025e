"""How many samples ended how: counted as they end, so that nobody has to read them all.

A row for each step and kind that it had any of; ``total`` runs through the steps of a lineage, so that the
last row up to a step is the count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from rollout.ledger.records import Disposition, DispositionKind
from rollout.ledger.sql.chain import read_ancestry
from rollout.ledger.sql.transaction import EVERYTHING, Transaction

SINCE_FORMAT = 4
"""Older ledgers, which readers take as they are, have no tallies."""

KINDS: tuple[DispositionKind, ...] = get_args(DispositionKind)


def add_tallies(
    tx: Transaction, lineage: int, step: int, dispositions: Sequence[Disposition]
) -> None:
    """Count what ends at a step: the newest of its lineage, or that one again."""
    for kind, num in sorted(Counter(one.kind for one in dispositions).items()):
        # One statement that gives no row: Postgres sends it along, and nobody waits for it.
        tx.execute(
            "INSERT INTO tallies (lineage, kind, step, num, total) VALUES (?, ?, ?, ?, ? + coalesce("
            "(SELECT b.total FROM tallies b WHERE b.lineage = ? AND b.kind = ? AND b.step < ?"
            " ORDER BY b.step DESC LIMIT 1), 0))"
            " ON CONFLICT (lineage, kind, step) DO UPDATE SET num = tallies.num + excluded.num,"
            " total = tallies.total + excluded.num",
            (lineage, kind, step, num, num, lineage, kind, step),
        )


def _total(tx: Transaction, lineage: int, kind: str, step: int) -> int:
    row = tx.execute(
        "SELECT total FROM tallies WHERE lineage = ? AND kind = ? AND step <= ?"
        " ORDER BY step DESC LIMIT 1",
        (lineage, kind, step),
    ).fetchone()
    return 0 if row is None else row[0]


def read_tallies(tx: Transaction) -> dict[str, int]:
    """How the samples of the live lineage ended, by kind."""
    counts: dict[str, int] = {}
    for lineage, bound in read_ancestry(tx):
        for kind in KINDS:
            num = _total(tx, lineage, kind, EVERYTHING if bound is None else bound)
            if num:
                counts[kind] = counts.get(kind, 0) + num
    return counts


def count_dispositions(tx: Transaction) -> dict[str, int]:
    """The same of a ledger without tallies: reads every disposition."""
    counts: dict[str, int] = {}
    for lineage, bound in read_ancestry(tx):
        rows = tx.execute(
            "SELECT kind, count(*) FROM dispositions WHERE lineage = ? AND step <= ? GROUP BY kind",
            (lineage, EVERYTHING if bound is None else bound),
        )
        for kind, count in rows:
            counts[kind] = counts.get(kind, 0) + count
    return counts

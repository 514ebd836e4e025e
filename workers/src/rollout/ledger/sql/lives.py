"""When which process of a run lived: facts that bills are made of, noted now and then as workers are heard.

A life grows from note to note. What nobody saw is not made up: after a gap of more than GAP_MS, or where the clock
has been set back, a new row begins, and the time between is not counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rollout.ledger.records import LifeNote
from rollout.ledger.sql.cells import read_document
from rollout.ledger.sql.transaction import Transaction
from rollout.ledger.views import LifeView

SINCE_FORMAT = 6
"""Older ledgers, which readers take as they are, noted no lives."""

GAP_MS = 3_600_000
"""Longest time between two notes of one life, as that of a coordinator that is away: what a clock that leaps can add at most."""

BACK_MS = 1_000
"""How far a note may lie behind the one before it: coordinators of two machines differ by so much."""


def note_lives(tx: Transaction, notes: Sequence[LifeNote]) -> None:
    """Lengthen the lives of those who were heard, and begin those that are new. Repeating it changes nothing."""
    for note in sorted(notes, key=lambda one: (one.worker, one.incarnation)):
        heard_ms = round((tx.now - note.ago_seconds) * 1000)
        found = tx.execute(
            "SELECT began_ms, heard_ms FROM lives WHERE worker = ? AND incarnation = ?"
            " AND heard_ms >= ? AND heard_ms <= ? ORDER BY heard_ms DESC LIMIT 1",
            (note.worker, note.incarnation, heard_ms - GAP_MS, heard_ms + BACK_MS),
        ).fetchone()
        if found is not None:
            tx.execute(
                "UPDATE lives SET heard_ms = ? WHERE worker = ? AND incarnation = ? AND began_ms = ?",
                (max(found[1], heard_ms), note.worker, note.incarnation, found[0]),
            )
            continue
        tx.execute(
            "INSERT INTO lives (worker, incarnation, began_ms, heard_ms, role, place)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                *(note.worker, note.incarnation, heard_ms, heard_ms, note.role),
                json.dumps(dict(note.place), sort_keys=True),
            ),
        )


def read_lives(tx: Transaction, have: int) -> tuple[LifeView, ...] | None:
    """All lives, in the order in which they began; None where the ledger's format knew of none."""
    return None if have < SINCE_FORMAT else read_all(tx)


def read_all(tx: Transaction) -> tuple[LifeView, ...]:
    """The same of a ledger that has them."""
    rows = tx.execute("SELECT * FROM lives ORDER BY began_ms, worker, incarnation")
    return tuple(
        LifeView(
            **{name: row[name] for name in ("worker", "incarnation", "role")},
            began_ms=row["began_ms"],
            heard_ms=row["heard_ms"],
            place=read_document(row["place"], "lives.place"),
        )
        for row in rows
    )


def read_attempt_seconds(tx: Transaction) -> dict[str, float]:
    """Seconds spent in attempts that have ended, by how they ended; reads every attempt."""
    rows = tx.execute(
        "SELECT ending, sum(CASE WHEN ended_at > started_at THEN ended_at - started_at ELSE 0 END)"
        " FROM attempts WHERE ended_at IS NOT NULL GROUP BY ending"
    )
    return {row[0]: row[1] for row in rows}

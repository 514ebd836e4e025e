"""Letting go of memory that was overwritten, taken away or pushed out: what is left up to a step is what was there at its end.

A few steps in one transaction, since what a step wrote is bounded, and written down in it.
"""

from __future__ import annotations

from rollout.ledger.sql.chain import read_ancestry
from rollout.ledger.sql.memory.rows import (
    BEGINNING,
    PART_ROWS,
    Chain,
    place_of,
    read_kept,
    read_kept_from,
    select_rows,
)
from rollout.ledger.sql.removing import check_free
from rollout.ledger.sql.tasks import lock_run
from rollout.ledger.sql.transaction import Transaction

STEPS_MAX = 16
"""Steps further that one transaction goes."""


def prune(tx: Transaction, step: int) -> bool:
    """Let go of what was overwritten by the end of ``step`` of the live chain; whether there may be more to do.

    Raises LedgerError where an anchor of an earlier step may be resumed from.
    """
    lock_run(tx)
    check_free(tx, step, "memory")
    before = read_kept_from(tx)
    if step <= before:
        return False
    last = min(step, before + STEPS_MAX)
    chain = tuple(
        (lineage, last if bound is None else min(last, bound))
        for lineage, bound in read_ancestry(tx)
    )
    kept = {(lineage, *place_of(row)) for lineage, row in read_kept(tx, chain, last)}
    _delete(tx, chain, kept)
    tx.execute("UPDATE run SET memory_step = ?", (last,))
    return last < step


def _delete(tx: Transaction, chain: Chain, kept: set[tuple[int, int, int, int, str]]) -> None:
    for lineage, last in chain:
        after = BEGINNING
        while rows := select_rows(tx, (lineage, last), after, PART_ROWS):
            for row in rows:
                place = place_of(row)
                if (lineage, *place) not in kept:
                    tx.write(
                        "DELETE FROM memory WHERE lineage = ? AND step = ? AND ordinal = ? AND sample = ?"
                        " AND key = ?",
                        (lineage, *place),
                    )
            after = place_of(rows[-1])

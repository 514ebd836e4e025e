"""Memory at a step boundary: what a run that goes on from there reads, and nothing that was overwritten by then."""

from __future__ import annotations

import msgspec

from rollout.errors import NoLongerKept
from rollout.ledger.cuts import TABLES, LedgerCut
from rollout.ledger.sql.memory.rows import Chain, place_of, read_kept, read_kept_from
from rollout.ledger.sql.transaction import Transaction

SINCE_FORMAT = 8
"""Older ledgers, which readers take as they are, have no memory."""


def with_memory(tx: Transaction, have: int, cut: LedgerCut, chain: Chain) -> LedgerCut:
    """The cut and the memory of its chain of steps, also as of versions that are being evaluated.

    ``have`` is the ledger's format. Raises NoLongerKept.
    """
    if have < SINCE_FORMAT:
        return cut
    if cut.step < (kept_from := read_kept_from(tx)):
        raise NoLongerKept(
            f"memory as of step {cut.step} is no longer kept, but from step {kept_from} on"
        )
    kept = read_kept(tx, chain, floor_of(cut))
    rows = tuple((lineage, *place_of(row), row.value, row.vector) for lineage, row in kept)
    if not rows:
        return cut
    return msgspec.structs.replace(cut, tables={**cut.tables, "memory": rows})


def floor_of(cut: LedgerCut) -> int:
    """The step from which on memory is read as of any version: the cut's, or one whose evaluation is not over."""
    columns = TABLES["evaluations"]
    step, summary = columns.index("step"), columns.index("summary")
    rows = cut.tables.get("evaluations", ())
    return min([cut.step, *(row[step] for row in rows if row[summary] is None)])

"""The live chain of steps, through its forks: which lineages it is made of, its head, its place in the data."""

from __future__ import annotations

from rollout.ledger.sql.transaction import Transaction


def read_ancestry(tx: Transaction) -> tuple[tuple[int, int | None], ...]:
    """(lineage, last step that still counts) from the live lineage, which has no bound, to the root."""
    lineage: int | None = tx.execute("SELECT lineage FROM run").fetchone()[0]
    chain: list[tuple[int, int | None]] = []
    bound: int | None = None
    while lineage is not None:
        chain.append((lineage, bound))
        parent, base = tx.execute(
            "SELECT parent, base_step FROM lineages WHERE lineage = ?", (lineage,)
        ).fetchone()
        # A fork below an earlier fork's base cuts the grandparent, too.
        bound = base if bound is None else min(base, bound)
        lineage = parent
    return tuple(chain)


def head_step(tx: Transaction) -> int:
    """The last committed step of the live lineage, 0 before the first."""
    lineage, base = tx.execute(
        "SELECT l.lineage, l.base_step FROM run JOIN lineages l ON l.lineage = run.lineage"
    ).fetchone()
    row = tx.execute("SELECT max(step) FROM steps WHERE lineage = ?", (lineage,)).fetchone()
    return base if row[0] is None else row[0]


def next_ordinal(tx: Transaction, step: int) -> int:
    """The first training ordinal that no step of the live chain up to this one has taken."""
    for lineage, bound in read_ancestry(tx):
        if bound is None or step <= bound:
            row = tx.execute(
                "SELECT next_ordinal FROM steps WHERE lineage = ? AND step = ?", (lineage, step)
            ).fetchone()
            if row is not None:
                return row[0]
    return 0

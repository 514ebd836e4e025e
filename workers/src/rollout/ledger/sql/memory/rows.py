"""Rows of memory: those of a step are written with it and never changed, and read along a version's own chain of steps.

Steps grow along a chain, through its forks, so that rows of all its lineages have one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from rollout.errors import LedgerBroken, NoLongerKept
from rollout.ledger.records import MemoryPart, MemoryRow
from rollout.ledger.sql.transaction import Row, Transaction
from rollout.memory import apply_writes

COLUMNS = "lineage, step, ordinal, sample, key, value, vector"
FIELDS = "step, ordinal, sample, key, value, vector"
PLACE = "(step, ordinal, sample, key)"
TYPES = (int, int, int, str, str, bytes | memoryview)
PART_ROWS = 512
"""Rows of one answer: a few megabytes at most."""

Place = tuple[int, int, int, str]
"""Of a row: step, ordinal, sample, key."""
BEGINNING: Place = (0, 0, 0, "")
"""Before the first row."""
Chain = tuple[tuple[int, int], ...]
"""(lineage, last step that counts) from the youngest to the root."""

place_of = attrgetter("step", "ordinal", "sample", "key")


def insert_rows(tx: Transaction, lineage: int, rows: Sequence[MemoryRow]) -> None:
    """Write what the samples of a step wrote; nothing is asked where they wrote nothing."""
    tx.insert(
        "memory",
        COLUMNS,
        [(lineage, *place_of(row), row.value, row.vector) for row in rows],
    )


def read_chain(tx: Transaction, lineage: int, step: int) -> Chain:
    """The steps that the version (``lineage``, ``step``) stands on; empty for a lineage that there is not."""
    chain: list[tuple[int, int]] = []
    at: int | None = lineage
    while at is not None:
        row = tx.execute(
            "SELECT parent, base_step FROM lineages WHERE lineage = ?", (at,)
        ).fetchone()
        if row is None:
            break
        chain.append((at, step))
        at, step = row[0], min(step, row[1])
    return tuple(chain)


def read_part(tx: Transaction, lineage: int, step: int, after: Place) -> MemoryPart:
    """Rows behind ``after`` as of a version, PART_ROWS at most. Raises NoLongerKept for a version whose rows are gone."""
    kept_from = read_kept_from(tx)
    if step < kept_from:
        raise NoLongerKept(
            f"memory as of step {step} is no longer kept: rows up to step {kept_from} that were overwritten by"
            " then are gone"
        )
    found: list[MemoryRow] = []
    for at, last in reversed(read_chain(tx, lineage, step)):
        found += select_rows(tx, (at, last), after, PART_ROWS + 1 - len(found))
    return MemoryPart(
        rows=tuple(found[:PART_ROWS]), more=len(found) > PART_ROWS, kept_from=kept_from
    )


def read_kept_from(tx: Transaction) -> int:
    """The step up to which only those rows are left whose entries were there at its end; 0: all are."""
    return tx.execute("SELECT memory_step FROM run").fetchone()[0]


def select_rows(
    tx: Transaction, until: tuple[int, int], after: Place, num_max: int
) -> list[MemoryRow]:
    """Rows of a lineage behind ``after``, up to a step, in their order."""
    lineage, last = until
    if num_max < 1:
        return []
    rows = tx.execute(
        f"SELECT {FIELDS} FROM memory WHERE lineage = ? AND step <= ? AND {PLACE} > (?, ?, ?, ?)"
        " ORDER BY step, ordinal, sample, key LIMIT ?",
        (lineage, last, *after, num_max),
    )
    return [_row(row) for row in rows]


def _row(row: Row) -> MemoryRow:
    step, ordinal, sample, key, value, vector = row
    if not all(map(isinstance, row, TYPES)):
        raise LedgerBroken(
            f"the ledger's table memory has a row of other types ({key!r:.80}): restore the ledger from a copy, or"
            " begin at a snapshot"
        )
    return MemoryRow(
        step=step, ordinal=ordinal, sample=sample, key=key, value=value, vector=bytes(vector)
    )


def read_kept(tx: Transaction, chain: Chain, floor: int) -> list[tuple[int, MemoryRow]]:
    """Rows of a chain, each with its lineage: those up to ``floor`` whose entries are there at its end, and all later ones."""
    entries: dict[str, MemoryRow] = {}
    later: list[MemoryRow] = []
    for until in reversed(chain):
        after = BEGINNING
        while rows := select_rows(tx, until, after, PART_ROWS):
            apply_writes(entries, (row for row in rows if row.step <= floor))
            later += [row for row in rows if row.step > floor]
            after = place_of(rows[-1])
    return [(lineage_of(chain, row.step), row) for row in (*entries.values(), *later)]


def lineage_of(chain: Chain, step: int) -> int:
    """The lineage of a chain that has a step."""
    return next(lineage for lineage, last in reversed(chain) if step <= last)

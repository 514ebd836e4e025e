"""A ledger at one step boundary, as plain rows: what a run needs to go on from there, in any ledger.

Rows of a table stand in the order of its columns here. Whatever is read from outside has just these tables, this many
columns, and no cell that is no plain value; the SQL that takes it in is made of these names and never of its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.errors import LedgerError
from rollout.ledger.records import Record

CUT_FORMAT = 1
Cells = tuple[tuple[Any, ...], ...]
"""Rows of str, int, float, bytes or None; ``check_cut`` sees to it: msgspec knows no such union."""
PLAIN = (str, int, float, bytes, type(None))

TABLES: dict[str, tuple[str, ...]] = {
    "lineages": ("lineage", "parent", "base_step", "reason", "created_at"),
    "versions": ("lineage", "step", "digest", "object", "chain", "published_at", "retired"),
    "steps": (
        *("lineage", "step", "plan", "next_ordinal", "exhausted", "metrics", "phase_seconds"),
        "committed_at",
    ),
    "tasks": (
        *("task_id", "kind", "ordinal", "num_samples", "evaluation", "split", "lineage", "step"),
        *("state", "epoch", "failures", "losses", "data_failures", "admitted_at", "prefixed"),
    ),
    "attempts": (
        *("task_id", "epoch", "worker", "incarnation", "version_lineage", "version_step"),
        *("started_at", "ended_at", "ending", "message"),
    ),
    "trajectories": (
        *("task_id", "sample", "trajectory_id", "epoch", "reward", "num_tokens", "ending"),
    ),
    "dispositions": ("lineage", "task_id", "sample", "step", "kind", "reason", "place"),
    "tallies": ("lineage", "kind", "step", "num", "total"),
    "evaluations": (
        *("name", "split", "lineage", "step", "num_tasks", "scheduled_at", "finished_at"),
        *("summary", "removed"),
    ),
    "anchors": ("lineage", "step", "name", "manifest", "saved_at", "deleted"),
    "memory": ("lineage", "step", "ordinal", "sample", "key", "value", "vector"),
}
"""In the order in which they are written: parents first. A cut of a run whose environments keep nothing has no ``memory``."""


class LedgerCut(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run at the end of ``step``. ``first_waiting`` is the first ordinal that no step up to it has taken.

    ``bodies`` are the samples of finished tasks that nobody has consumed, ``prefixes`` beginnings of samples, both by
    task; ``versions`` the objects that open evaluations and the best version need. ``num_leased`` tasks were in
    somebody's hands: they are open again here, with the same noise. ``rewound``: the run had gone on past ``step``.
    """

    lineage: int
    step: int
    first_waiting: int
    next_admitted: int
    exhausted: bool
    rewound: bool
    num_leased: int
    versions: dict[str, tuple[str, ...]]
    tables: dict[str, Cells]
    bodies: dict[str, bytes] = msgspec.field(default_factory=dict)
    prefixes: dict[str, bytes] = msgspec.field(default_factory=dict)


class _Document(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    cut: LedgerCut


def encode_cut(cut: LedgerCut) -> bytes:
    """The cut without its bodies and prefixes, which are objects of their own; equal cuts, equal bytes."""
    bare = msgspec.structs.replace(cut, bodies={}, prefixes={})
    return msgspec.msgpack.encode(_Document(format=CUT_FORMAT, cut=bare), order="deterministic")


def decode_cut(data: bytes) -> LedgerCut:
    """The cut of ``encode_cut``. Raises LedgerError for anything else."""
    try:
        found = msgspec.msgpack.decode(data)
        said = found.get("format") if isinstance(found, dict) else None
        if said != CUT_FORMAT:
            raise LedgerError(
                f"a cut of format {said!r}, this version of rollout reads {CUT_FORMAT}: use the version that"
                " wrote it"
            )
        cut = msgspec.convert(found, _Document).cut
    except (msgspec.ValidationError, ValueError, *UNREADABLE) as error:
        raise LedgerError(f"not a cut of a ledger: {error}") from error
    check_cut(cut)
    return cut


def check_cut(cut: LedgerCut) -> None:
    """Raises LedgerError for tables, or rows, that a ledger does not have."""
    for table, rows in cut.tables.items():
        width = len(TABLES.get(table, ()))
        if not all(
            len(row) == width and all(isinstance(cell, PLAIN) for cell in row) for row in rows
        ):
            raise LedgerError(
                f"a cut of a ledger: table {table!r} has a row that is not {width} plain values"
            )

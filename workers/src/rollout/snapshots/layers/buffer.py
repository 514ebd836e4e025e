"""What a run has admitted and not consumed: the queue and its cursor, open groups, finished samples, beginnings.

The ledger's rows at the step boundary lie in pages, and each body is an object of its own: of the next snapshot, what
is still there is stored already. Leases are facts that expire with a restore.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollout.errors import StoreError
from rollout.ledger.cuts import TABLES, LedgerCut
from rollout.seams import ObjectSource
from rollout.snapshots.layers.contract import Moment, Taken, read_part
from rollout.snapshots.layers.memory import without_memory
from rollout.snapshots.layers.rows import LEDGER, ROWS, join_rows, split_rows
from rollout.snapshots.manifest import LayerKind, LayerRecord

BODY, PREFIX, WEIGHTS = "body/", "prefix/", "version/"


class Buffer:
    """The ledger's part of a snapshot."""

    kind: LayerKind = "buffer"

    def take(self, moment: Moment) -> Taken:
        """As the contract says. Versions whose objects are gone, which no evaluation waits for, are left out."""
        cut = _with_stored(without_memory(moment.cut), moment.source)
        present = {
            f"{WEIGHTS}{version}/{number}": digest
            for version, objects in cut.versions.items()
            for number, digest in enumerate(objects)
        }
        bodies = {f"{BODY}{task}": body for task, body in cut.bodies.items()}
        prefixes = {f"{PREFIX}{task}": body for task, body in cut.prefixes.items()}
        return Taken(
            kind=self.kind,
            grade=moment.grade,
            restore_scope="anywhere",
            facts={
                "groups": len(waiting_tasks(cut)),
                "finished": len(bodies),
                "leases": cut.num_leased,
                "partial": len(prefixes),
            },
            present=present,
            made={**split_rows(cut), **bodies, **prefixes},
        )

    def read(self, record: LayerRecord, source: ObjectSource) -> LedgerCut:
        """The cut, with all its bodies."""
        names = [part.name for part in record.parts if part.name.startswith(ROWS)]
        cut = join_rows({name: read_part(record, name, source) for name in (LEDGER, *names)})
        found = {
            begin: {
                part.name.removeprefix(begin): source.path(part.object).read_bytes()
                for part in record.parts
                if part.name.startswith(begin)
            }
            for begin in (BODY, PREFIX)
        }
        whole = msgspec.structs.replace(cut, bodies=found[BODY], prefixes=found[PREFIX])
        _check_bodies(whole)
        return whole


def waiting_tasks(cut: LedgerCut) -> list[dict[str, Any]]:
    """The tasks of a cut that no step has taken: training's, and those of evaluations that are not over."""
    rows = (dict(zip(TABLES["tasks"], row, strict=True)) for row in cut.tables.get("tasks", ()))
    return [
        row
        for row in rows
        if row["kind"] == "eval" or (row["kind"] == "train" and row["ordinal"] >= cut.first_waiting)
    ]


def _with_stored(cut: LedgerCut, source: ObjectSource) -> LedgerCut:
    """The cut, with those versions retired whose weights nobody has stored: no actor loads them."""
    kept = {
        name: objects for name, objects in cut.versions.items() if all(map(source.has, objects))
    }
    gone = cut.versions.keys() - kept.keys()
    retired = TABLES["versions"].index("retired")
    rows = tuple(
        (*row[:retired], 1, *row[retired + 1 :]) if f"{row[0]}-{row[1]}" in gone else row
        for row in cut.tables.get("versions", ())
    )
    tables = {**cut.tables, "versions": rows}
    return msgspec.structs.replace(cut, versions=kept, tables=tables)


def _check_bodies(cut: LedgerCut) -> None:
    """Raises StoreError unless each finished task of the cut has its body, and no other task has one."""
    finished = {task["task_id"] for task in waiting_tasks(cut) if task["state"] == "done"}
    if finished != cut.bodies.keys():
        odd = sorted(map(str, finished ^ cut.bodies.keys()))[:3]
        raise StoreError(
            f"layer buffer: bodies and finished tasks are not the same: {', '.join(odd)}"
        )

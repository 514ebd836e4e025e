"""What environments keep between episodes, as the cut has it: rows of entries in pages of neighbouring steps.

Of a run whose environments keep nothing there is no such layer. Refuses rows that no environment could have written, and
pages of another format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.errors import MemoryRefused, StoreError
from rollout.ledger.cuts import Cells, LedgerCut
from rollout.ledger.records import MemoryRow, Record
from rollout.memory import apply_writes, check_write
from rollout.seams import ObjectSource
from rollout.snapshots.layers.contract import Moment, Taken, read_part
from rollout.snapshots.layers.rows import pack_page, unpack_page
from rollout.snapshots.manifest import LayerKind, LayerRecord

HEAD, PAGE = "memory", "rows/memory/"
FORMAT = 1
STEPS_OF_PAGE = 32


class _Head(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    num_rows: int


class EpisodicMemory:
    """Keys, values and vectors, each with the step that wrote it."""

    kind: LayerKind = "episodic_memory"

    def take(self, moment: Moment) -> Taken:
        """As the contract says."""
        rows = memory_of(moment.cut)
        pages: dict[tuple[int, int], list[tuple[object, ...]]] = {}
        for row in sorted(rows, key=lambda row: row[:5]):
            pages.setdefault((row[0], row[1] // STEPS_OF_PAGE), []).append(row)
        made = {
            f"{PAGE}{number:06d}": pack_page(pages[key]) for number, key in enumerate(sorted(pages))
        }
        entries: dict[str, MemoryRow] = {}
        apply_writes(entries, map(_record, sorted(rows, key=lambda row: row[1:5])))
        return Taken(
            kind=self.kind,
            grade=moment.grade,
            restore_scope="anywhere",
            facts={"entries": len(entries), "rows": len(rows)},
            present={},
            made={HEAD: pack_page(_Head(format=FORMAT, num_rows=len(rows))), **made},
        )

    def read(self, record: LayerRecord, source: ObjectSource) -> Cells:
        """Rows of the ledger's table ``memory``."""
        try:
            head = msgspec.msgpack.decode(unpack_page(read_part(record, HEAD, source)))
            said = head.get("format") if isinstance(head, dict) else None
            if said != FORMAT:
                raise StoreError(
                    f"layer {self.kind} of format {said!r}, this version of rollout reads {FORMAT}: use the version"
                    " that wrote it"
                )
            names = sorted(part.name for part in record.parts if part.name.startswith(PAGE))
            rows = [row for name in names for row in _rows(read_part(record, name, source))]
            if len(rows) != msgspec.convert(head, _Head).num_rows:
                raise StoreError(
                    f"layer {self.kind}: expected {head['num_rows']} rows, got {len(rows)}"
                )
        except (msgspec.ValidationError, MemoryRefused, *UNREADABLE) as error:
            raise StoreError(f"layer {self.kind}: not what environments keep: {error}") from error
        return tuple(rows)


def memory_of(cut: LedgerCut) -> Cells:
    """The rows of memory of a cut."""
    return cut.tables.get("memory", ())


def without_memory(cut: LedgerCut) -> LedgerCut:
    """The cut without them."""
    tables = {name: rows for name, rows in cut.tables.items() if name != "memory"}
    return msgspec.structs.replace(cut, tables=tables)


def _rows(page: bytes) -> list[tuple[object, ...]]:
    found = msgspec.msgpack.decode(
        unpack_page(page), type=list[tuple[int, int, int, int, str, str, bytes]]
    )
    for row in found:
        check_write(_record(row))
    return [*found]


def _record(row: Sequence[Any]) -> MemoryRow:
    _, step, ordinal, sample, key, value, vector = row
    return MemoryRow(step=step, ordinal=ordinal, sample=sample, key=key, value=value, vector=vector)

"""The rows of a cut as pages: what the next snapshot has again is an object that is stored already.

Rows of tasks lie in pages of neighbouring ordinals, table by table, those of steps in one page a step; a page changes
when one of its rows does. The rest, which is small, is the page ``ledger``. Each is one zstd frame. Reads, too, what
an earlier release has written: all rows in one document. Refuses pages of tables that a ledger does not have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import zstandard

from rollout.common.bounded import UNREADABLE, unpack_zstd
from rollout.errors import LedgerError
from rollout.ledger.cuts import TABLES, Cells, LedgerCut, check_cut, decode_cut
from rollout.ledger.records import Record

LEDGER, ROWS = "ledger", "rows/"
ROWS_FORMAT = 2
"""Of a cut in pages; 1 is one in a document."""
TASKS_OF_PAGE = 32
LEVEL = 3
PAGE_BYTES_MAX = 1 << 30
FRAME = b"\x28\xb5\x2f\xfd"
"""What a zstd frame begins with."""

OF_TASKS = ("tasks", "attempts", "trajectories")
"""Tables whose rows begin with a task's id."""
OF_STEPS = ("steps", "dispositions")
"""Tables whose rows begin with a lineage and are of a step."""
Key = tuple[Any, ...]
Row = tuple[Any, ...]


class _Head(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    cut: LedgerCut


def split_rows(cut: LedgerCut) -> dict[str, bytes]:
    """The pages of a cut by the name of their part, without bodies and prefixes; equal cuts, equal pages."""
    paged, rest = _page(cut), dict(cut.tables)
    pages: dict[str, bytes] = {}
    for table, found in paged.items():
        del rest[table]
        for number, key in enumerate(sorted(found)):
            pages[f"{ROWS}{table}/{number:06d}"] = pack_page(tuple(found[key]))
    bare = msgspec.structs.replace(cut, bodies={}, prefixes={}, tables=rest)
    return {LEDGER: pack_page(_Head(format=ROWS_FORMAT, cut=bare)), **pages}


def join_rows(pages: Mapping[str, bytes]) -> LedgerCut:
    """The cut of these pages, or of one document. Raises LedgerError for anything else."""
    if not pages[LEDGER].startswith(FRAME):
        return decode_cut(pages[LEDGER])
    try:
        found = msgspec.msgpack.decode(unpack_page(pages[LEDGER]))
        said = found.get("format") if isinstance(found, dict) else None
        if said != ROWS_FORMAT:
            raise LedgerError(
                f"a cut of format {said!r}, this version of rollout reads {ROWS_FORMAT}: use the version that"
                " wrote it"
            )
        bare = msgspec.convert(found, _Head).cut
        tables: dict[str, Cells] = dict(bare.tables)
        for name in sorted(name for name in pages if name.startswith(ROWS)):
            table = name.removeprefix(ROWS).rpartition("/")[0]
            rows = msgspec.msgpack.decode(unpack_page(pages[name]), type=Cells)
            tables[table] = (*tables.get(table, ()), *rows)
    except (msgspec.ValidationError, ValueError, *UNREADABLE) as error:
        raise LedgerError(f"not a cut of a ledger: {error}") from error
    cut = msgspec.structs.replace(bare, tables=tables)
    check_cut(cut)
    return cut


def _page(cut: LedgerCut) -> dict[str, dict[Key, list[Row]]]:
    """Rows by table and by what a page is of, each page's in the order of their tasks."""
    places = {row[0]: _place(row) for row in cut.tables.get("tasks", ())}
    found: dict[str, dict[Key, list[Row]]] = {}
    for table, rows in cut.tables.items():
        if table in OF_TASKS:
            ordered = sorted(rows, key=lambda row: places[row[0]])
            found[table] = _grouped(ordered, lambda row: _page_of(places[row[0]]))
        elif table in OF_STEPS:
            start = TABLES[table].index("step")
            found[table] = _grouped(rows, lambda row, at=start: (row[0], row[at]))
    return found


def _grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    pages: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        pages[key(row)].append(row)
    return pages


def _place(task: Row) -> Key:
    """Where a task stands among all, its ordinal last."""
    row = dict(zip(TABLES["tasks"], task, strict=True))
    kind = ("kind", "evaluation", "split", "lineage", "step")
    return (*(str(row[name]) for name in kind), row["ordinal"])


def _page_of(place: Key) -> Key:
    return (*place[:-1], place[-1] // TASKS_OF_PAGE)


def pack_page(message: Any) -> bytes:
    """One frame; equal messages, equal bytes."""
    plain = msgspec.msgpack.encode(message, order="deterministic")
    return zstandard.ZstdCompressor(level=LEVEL).compress(plain)


def unpack_page(page: bytes) -> bytes:
    """What a frame holds, in msgpack. Raises one of ``UNREADABLE``, or LedgerError."""
    return unpack_zstd(page, PAGE_BYTES_MAX)

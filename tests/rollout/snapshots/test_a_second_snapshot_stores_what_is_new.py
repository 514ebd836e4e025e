"""Of a buffer that goes on, the next snapshot stores the rows that are new or another; all of them come back as they were."""

from dataclasses import dataclass

import msgspec
import pytest
import zstandard

from rollout.errors import LedgerError
from rollout.ledger.cuts import TABLES, LedgerCut, encode_cut
from rollout.snapshots.layers.rows import (
    LEDGER,
    ROWS,
    ROWS_FORMAT,
    TASKS_OF_PAGE,
    join_rows,
    split_rows,
)

STATE = TABLES["tasks"].index("state")


@dataclass(frozen=True)
class Waiting:
    """A run at a step: tasks of some ordinals, their attempts and samples, and its last steps."""

    step: int
    first: int
    last: int

    def cut(self) -> LedgerCut:
        names = range(self.first, self.last)
        tasks = tuple(
            (f"t/{n}", "train", n, 1, "", "train", 0, 0, "done", 1, 0, 0, 0, float(n), 0)
            for n in names
        )
        attempts = tuple((f"t/{n}", 1, "actor", 1, 0, 0, 1.0, 2.0, "accepted", "") for n in names)
        samples = tuple((f"t/{n}", 0, f"blake3:{n:064x}", 1, 0.5, 9, "stop") for n in names)
        steps = range(max(1, self.step - 3), self.step + 1)
        return LedgerCut(
            lineage=0,
            step=self.step,
            first_waiting=self.first,
            next_admitted=self.last,
            exhausted=False,
            rewound=False,
            num_leased=0,
            versions={},
            tables={
                "tasks": tasks,
                "attempts": tuple(sorted(attempts)),
                "trajectories": tuple(sorted(samples)),
                "steps": tuple((0, n, b"plan", n, 0, "{}", "{}", float(n)) for n in steps),
                "dispositions": tuple((0, f"t/{n}", 0, n, "consumed", "", 0) for n in steps),
                "anchors": ((0, self.step, "name", "{}", 1.0, 0),),
            },
        )


def rows_of(cut):
    return {table: sorted(rows) for table, rows in cut.tables.items()}


@pytest.mark.parametrize("run", [Waiting(0, 0, 0), Waiting(1, 5, 6), Waiting(9, 30, 170)])
def test_every_row_comes_back_and_equal_cuts_are_equal_pages(run):
    cut = run.cut()
    pages = split_rows(cut)
    back = join_rows(pages)
    assert rows_of(back) == {k: v for k, v in rows_of(cut).items() if v or k == "anchors"}
    assert msgspec.structs.replace(back, tables={}) == msgspec.structs.replace(cut, tables={})
    assert split_rows(msgspec.structs.replace(cut, tables=back.tables)) == pages


def test_of_a_step_that_was_taken_only_the_pages_at_both_ends_are_new():
    width = 2 * TASKS_OF_PAGE
    before = split_rows(Waiting(8, 0, 6 * width).cut())
    after = split_rows(Waiting(9, width, 7 * width).cut())
    new = set(after.values()) - set(before.values())
    tables = ("tasks", "attempts", "trajectories")
    assert len(new) == len(tables) * 2 + len(("steps", "dispositions")) + len((LEDGER,))
    assert len(after) > 3 * len(new)


def test_a_task_that_changed_takes_its_neighbours_along_and_no_others():
    cut = Waiting(8, 0, 8 * TASKS_OF_PAGE).cut()
    tasks = list(cut.tables["tasks"])
    tasks[40] = (*tasks[40][:STATE], "open", *tasks[40][STATE + 1 :])
    other = msgspec.structs.replace(cut, tables={**cut.tables, "tasks": tuple(tasks)})
    before, after = split_rows(cut), split_rows(other)
    assert {name for name in after if after[name] != before[name]} == {f"{ROWS}tasks/000001"}


def test_one_document_of_an_earlier_release_is_read():
    cut = Waiting(3, 5, 9).cut()
    assert join_rows({LEDGER: encode_cut(cut)}) == cut


def packed(message):
    return zstandard.compress(msgspec.msgpack.encode(message))


def test_what_is_no_cut_is_refused():
    pages = split_rows(Waiting(3, 5, 9).cut())
    head = msgspec.msgpack.decode(zstandard.decompress(pages[LEDGER]))
    for changed, said in (
        ({LEDGER: packed({**head, "format": ROWS_FORMAT + 1})}, "format 3, this version"),
        ({LEDGER: packed([1])}, "format None"),
        ({LEDGER: pages[LEDGER][:-3]}, "not a cut"),
        ({LEDGER: packed({**head, "more": 1})}, "not a cut"),
        ({f"{ROWS}tasks/000000": b"\x28\xb5\x2f\xfd no frame"}, "not a cut"),
        ({f"{ROWS}tasks/000000": packed({"a": 1})}, "not a cut"),
        ({f"{ROWS}tasks/000000": packed([[1, 2]])}, "table 'tasks' has a row"),
        ({f"{ROWS}sqlite_master/000000": packed([[1]])}, "table 'sqlite_master' has a row"),
        ({f"{ROWS}tasks/000000": packed([[["nested"]] * 15])}, "table 'tasks' has a row"),
    ):
        with pytest.raises(LedgerError, match=said):
            join_rows({**pages, **changed})

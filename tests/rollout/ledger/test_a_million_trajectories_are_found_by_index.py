"""Every statement finds what it asks for by an index, in a ledger of any size, whatever statistics it had."""

from __future__ import annotations

import sqlite3

import pytest
from ledger_kit import IDENTITY, Clock, claim_request, finished, started, step_commit

from rollout.ledger.records import Disposition, Limits
from rollout.ledger.sql import loading, removing, steps, tallies
from rollout.ledger.sql.memory import pruning, rows
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.ledger.sqlite.statistics import SHAPE
from rollout.ledger.sqlite.transaction import SqliteTransaction

GROWING = (
    "tasks",
    "trajectories",
    "dispositions",
    "attempts",
    "bodies",
    "t",
    "j",
    "d",
    "o",
    "b",
    "tallies",
    "memory",
)
"""Tables that grow with finished work, and the names that statements give them."""


ENDED = (Disposition(task_id="t/1", sample=0, kind="expired"),)


class Explained(SqliteTransaction):
    """Notes how SQLite means to find what every statement asks for."""

    def __init__(self, connection):
        super().__init__(connection, lambda: 2000.0)
        self.plans: list[tuple[str, str]] = []

    def execute(self, sql, values=()):
        rows = self._connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)
        self.plans += [(sql, row[3]) for row in rows.fetchall()]
        return super().execute(sql, values)


class Told(LedgerReader):
    """Asks what people ask, in a transaction that it is given."""

    def __init__(self, tx):
        self.where, self.have, self._given = "", removing.SINCE_FORMAT, tx

    @property
    def _tx(self):
        return self._given


def spoil(path, how):
    with sqlite3.connect(path) as connection:
        if how == "measured":
            connection.execute("ANALYZE")
        if how == "lost":
            connection.execute("DELETE FROM sqlite_stat1")
        if how == "wrong":
            connection.execute("UPDATE sqlite_stat1 SET stat = '1 1 1 1'")


def open_ledger(path):
    return SqliteLedger(path, IDENTITY, Limits(), Clock())


@pytest.fixture(params=["as made", "measured", "lost", "wrong"])
async def path(request, tmp_path):
    """A ledger with a committed step, whose statistics somebody touched before it was opened again."""
    path = tmp_path / "ledger.db"
    ledger = open_ledger(path)
    learner, actor = await started(ledger, 4)
    claims = await ledger.claim(claim_request("actor-0", actor))
    await ledger.submit("actor-0", actor, [finished(lease) for lease in claims.leases])
    await ledger.commit(step_commit(1, range(1), learner))
    await ledger.close()
    spoil(path, request.param)
    await open_ledger(path).close()
    return path


def plans_of(path, *questions):
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        tx = Explained(connection)
        for question in questions:
            question(tx)
        return tx.plans


QUESTIONS = (
    lambda tx: loading.record_of(tx, 1),
    lambda tx: loading.batch_of(tx, 1),
    lambda tx: loading.metrics_after(tx, 0),
    loading.load,
    tallies.read_tallies,
    lambda tx: tallies.add_tallies(tx, 0, 2, ENDED),
    lambda tx: Told(tx).steps(),
    lambda tx: Told(tx).dispositions(),
    lambda tx: loading._recent_rewards(tx, 1),
    lambda tx: loading._groups(tx, 2),
    lambda tx: loading.first_waiting(tx, 0),
    loading._eval_leases,
    lambda tx: loading.read_bodies(tx, ["t/0"]),
    lambda tx: steps._reopen(tx, 2),
    lambda tx: steps._made(tx, ["t/0"]),
    lambda tx: removing._find_trained(tx, 0, 2, 10),
    lambda tx: removing._remove_evaluation(tx, ("heldout", "report", 0, 1), 10),
    lambda tx: removing.check_not_lost(tx, []),
    lambda tx: removing._removed_of(tx, ["t/0"]),
    lambda tx: rows.read_part(tx, 0, 1, rows.BEGINNING),
    lambda tx: pruning._delete(tx, ((0, 1),), set()),
)


def test_no_table_that_grows_is_read_from_end_to_end(path):
    plans = plans_of(path, *QUESTIONS)

    assert plans
    scanned = [(sql, plan) for sql, plan in plans for name in GROWING if plan == f"SCAN {name}"]
    assert scanned == []


def test_a_step_is_found_by_the_index_of_steps(path):
    plans = plans_of(path, *QUESTIONS)

    by_step = [plan for sql, plan in plans if "d.step = ?" in sql and plan.startswith("SEARCH d")]
    assert by_step
    assert {plan.partition(" USING ")[2] for plan in by_step} == {
        "INDEX dispositions_by_step (lineage=? AND step=?)"
    }


def test_memory_is_found_by_its_lineage_and_the_place_of_a_row(path):
    plans = plans_of(path, lambda tx: rows.read_part(tx, 0, 1, (1, 4, 1, "a")))

    assert {plan for sql, plan in plans if " memory " in sql} == {
        "SEARCH memory USING PRIMARY KEY (lineage=? AND (step,ordinal,sample,key)>(?,?,?,?) AND step<?)"
    }


def test_how_samples_ended_is_looked_up_in_tallies(path):
    plans = plans_of(path, *QUESTIONS)

    looked_up = {
        plan.partition(" USING ")[2]
        for sql, plan in plans
        if "tallies" in sql and plan.split(" ")[1] in {"tallies", "b", "d"}
    }
    assert looked_up == {
        "PRIMARY KEY (lineage=? AND kind=? AND step<?)",
        "PRIMARY KEY (lineage=? AND kind=? AND step=?)",
    }


def test_the_report_counts_a_step_of_an_older_ledger_by_the_index_of_steps(path):
    with LedgerReader(path) as reader:
        plan = reader._tx.execute(
            "EXPLAIN QUERY PLAN SELECT count(*) FROM dispositions d WHERE d.lineage = ?"
            " AND d.step = ? AND d.kind = 'consumed'",
            (0, 1),
        ).fetchall()

        assert "dispositions_by_step" in plan[0][3]
        assert [view.num_consumed for view in reader.steps()] == [2]


def test_a_parent_that_forked_is_looked_into_sample_by_sample(path):
    sql = (
        "SELECT d.task_id FROM dispositions d JOIN dispositions o ON o.lineage = ? AND"
        " o.task_id = d.task_id AND o.sample = d.sample AND o.step <= ?"
        " WHERE d.lineage = ? AND d.step = ? LIMIT 1"
    )

    plans = [plan for _, plan in plans_of(path, lambda tx: tx.execute(sql, (0, 1, 1, 1)))]

    assert plans == [
        "SEARCH d USING COVERING INDEX dispositions_by_step (lineage=? AND step=?)",
        "SEARCH o USING PRIMARY KEY (lineage=? AND task_id=? AND sample=?)",
    ]


def test_statistics_name_tables_and_indexes_that_exist(path):
    with sqlite3.connect(path) as connection:
        found = set(connection.execute("SELECT tbl_name, name FROM sqlite_master"))

    assert {(table, index) for table, index, _ in SHAPE} <= found

"""Every row that the ledger's file takes is checked, and no check builds a table to look its value up in."""

import re
import sqlite3

import pytest
from ledger_kit import IDENTITY

from rollout.ledger.sqlite.ledger import SqliteLedger

KINDS = ("consumed", "filtered", "expired", "excluded", "surplus")
STATES = ("open", "leased", "done", "excluded", "expired", "surplus")
CHECKED = {
    ("tasks", "kind"): ("train", "eval", "row"),
    ("tasks", "state"): STATES,
    ("dispositions", "kind"): KINDS,
}
DISPOSITION = "INSERT INTO dispositions VALUES (0, 't/0', 0, 1, ?, '', 0)"
TASK = (
    "INSERT INTO tasks (task_id, kind, ordinal, num_samples, evaluation, split, lineage, step, state,"
    " admitted_at) VALUES ('t/0', ?, 0, 1, '', '', 0, 0, ?, 0.0)"
)
INSERTS = {
    ("tasks", "kind"): lambda value: (TASK, (value, "open")),
    ("tasks", "state"): lambda value: (TASK, ("train", value)),
    ("dispositions", "kind"): lambda value: (DISPOSITION, (value,)),
}


@pytest.fixture
async def connection(tmp_path):
    await SqliteLedger(tmp_path / "ledger.db", IDENTITY).close()
    with sqlite3.connect(tmp_path / "ledger.db") as made:
        yield made
    made.close()


def test_no_row_of_any_table_costs_a_table(connection):
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    assert ("dispositions",) in tables
    costly = [name for (name,) in tables if "OpenEphemeral" in _operations(connection, name)]
    assert costly == []


def _operations(connection: sqlite3.Connection, table: str) -> list[str]:
    """What SQLite does for one row of a table."""
    width = len(connection.execute(f"SELECT * FROM {table}").description)
    sql = f"EXPLAIN INSERT INTO {table} VALUES ({', '.join('?' * width)})"
    return [row[1] for row in connection.execute(sql, [None] * width)]


@pytest.mark.parametrize("place", CHECKED, ids=".".join)
def test_a_value_is_taken_where_it_is_known_and_refused_where_it_is_not(connection, place):
    for value in CHECKED[place]:
        connection.execute(*INSERTS[place](value))
        connection.rollback()
    for value in ("", "other", CHECKED[place][0].upper(), None):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(*INSERTS[place](value))


def test_every_check_of_words_is_looked_at_here(connection):
    sql = "\n".join(
        row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql > ''")
    )
    assert len(re.findall(r"CHECK \(\s*\w+ = '", sql)) == len(CHECKED)

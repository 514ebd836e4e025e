"""Whatever happens to a ledger's transaction, or to the ledger, each caller that waits gets a result or a named error."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from rollout.errors import LedgerError
from rollout.ledger.sqlite.writer import Writer

SECONDS_MAX = 60.0


class Fragile(sqlite3.Connection):
    """Raises what it is told to where a statement begins so, once or for good."""

    def __init__(self, *values, **named):
        super().__init__(*values, **named)
        self.trouble = {}

    def execute(self, sql, *values):
        for begin, error in self.trouble.items():
            if sql.startswith(begin):
                raise error
        return super().execute(sql, *values)


@pytest.fixture
def connection(tmp_path):
    path = tmp_path / "ledger.db"
    made = sqlite3.connect(path, factory=Fragile, check_same_thread=False, isolation_level=None)
    made.execute("CREATE TABLE run (position INTEGER)")
    made.execute("INSERT INTO run VALUES (0)")
    return made


@pytest.fixture
def writer(connection, tmp_path):
    made = Writer(connection, tmp_path / "ledger.db", lambda: 0.0)
    yield made
    made.close()


def bump(tx):
    tx.write("UPDATE run SET position = position", ())
    return "done"


TROUBLES = [
    {"COMMIT": MemoryError("no room")},
    {"COMMIT": sqlite3.OperationalError("disk I/O error")},
    {"BEGIN": RuntimeError("nobody thought of this")},
    {
        "UPDATE run SET position = ?": MemoryError("no room"),
        "ROLLBACK": sqlite3.OperationalError("disk"),
    },
    {"SAVEPOINT": MemoryError("no room")},
]


@pytest.mark.parametrize("trouble", TROUBLES, ids="+".join)
def test_trouble_of_any_kind_reaches_the_caller_and_ends_with_its_cause(
    connection, writer, trouble
):
    connection.trouble = trouble
    with pytest.raises(LedgerError, match=r"ledger .* could not be used"):
        writer.write(bump).result(SECONDS_MAX)
    connection.trouble = {}
    if "ROLLBACK" in trouble:
        with pytest.raises(LedgerError, match="within a transaction"):
            writer.write(bump).result(SECONDS_MAX)
    else:
        assert writer.write(bump).result(SECONDS_MAX) == "done"


def test_what_stands_behind_the_end_of_a_ledger_is_refused(writer):
    begun, go_on = threading.Event(), threading.Event()

    def hold(_):
        begun.set()
        assert go_on.wait(SECONDS_MAX)

    first = writer.write(hold)
    assert begun.wait(SECONDS_MAX)
    closing = threading.Thread(target=writer.close)
    closing.start()
    while writer._queue.empty():  # until close() stands in line
        pass
    late = writer.write(bump)
    go_on.set()
    closing.join(SECONDS_MAX)
    assert first.result(SECONDS_MAX) is None
    with pytest.raises(LedgerError, match="is closed"):
        late.result(SECONDS_MAX)
    with pytest.raises(LedgerError, match="is closed"):
        writer.write(bump)

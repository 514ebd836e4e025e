"""Claims, heartbeats and registrations look at the tasks under way alone, however many are done."""

import sqlite3

import pytest
from ledger_kit import IDENTITY, Clock, claim_request, started

from rollout.ledger.records import Limits
from rollout.ledger.sql import tasks
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.transaction import SqliteTransaction

DEEDS = {
    "claim": lambda tx: tasks.claim(tx, Limits(), claim_request("actor-0", 1)),
    "renew": lambda tx: tasks.renew(tx, "actor-0", 1, ("t/0",), 30.0),
    "register": lambda tx: tasks.register(tx, Limits(), "actor-0", "actor", 0, ""),
    "rearm": lambda tx: tasks.rearm(tx, 30.0),
}


class Explained(SqliteTransaction):
    """Notes how SQLite means to find what every statement asks for."""

    def __init__(self, connection, clock):
        super().__init__(connection, clock)
        self.plans: list[str] = []

    def execute(self, sql, values=()):
        rows = self._connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)
        self.plans += [row[3] for row in rows.fetchall()]
        return super().execute(sql, values)


@pytest.fixture
async def connection(tmp_path):
    ledger = SqliteLedger(tmp_path / "ledger.db", IDENTITY, Limits(), Clock())
    _, actor = await started(ledger, 2)
    await ledger.claim(claim_request("actor-0", actor))
    await ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as made:
        made.row_factory = sqlite3.Row
        yield made


@pytest.mark.parametrize("deed", DEEDS)
def test_no_table_of_tasks_is_read_from_end_to_end(connection, deed):
    tx = Explained(connection, lambda: 2000.0)
    DEEDS[deed](tx)
    assert tx.plans
    assert "SCAN tasks" not in tx.plans

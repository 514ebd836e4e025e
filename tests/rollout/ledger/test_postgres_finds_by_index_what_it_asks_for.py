"""Postgres, too, has an index for every statement that looks for something in a table that grows with finished work.

A server reads a table of a few rows from end to end, whatever indexes it has: here it may not, so that a
statement that no index serves is seen.
"""

import json

import pytest
from ledger_kit import Clock, claim_request, finished, started, step_commit

from rollout.ledger.records import Disposition, Limits
from rollout.ledger.sql import loading, removing, steps, tallies
from rollout.ledger.sql.memory import rows

GROWING = {"tasks", "trajectories", "dispositions", "attempts", "bodies", "tallies", "memory"}
LEASED = {"tasks_leased", "tasks_expiring"}
"""Indexes that hold leased tasks alone: may be read whole."""
STEP = "dispositions_by_step"
ORDER = "tasks_by_order"
EVALUATED = (
    "INSERT INTO tasks (task_id, kind, ordinal, num_samples, evaluation, split, lineage, step, state,"
    " admitted_at) SELECT 'e/' || n, 'eval', n, 1, 'heldout', 'report', 0, 0, 'done', 0"
    " FROM generate_series(1, 2000) n"
)
DISPOSITION = (Disposition(task_id="t/1", sample=0, kind="expired"),)

QUESTIONS = {
    "record": (lambda tx: loading.record_of(tx, 1), {STEP}),
    "batch": (lambda tx: loading.batch_of(tx, 1), {STEP, "bodies_pkey"}),
    "rewards": (lambda tx: loading._recent_rewards(tx, 1), {STEP}),
    "groups": (lambda tx: loading._groups(tx, 2), {ORDER}),
    "first waiting": (lambda tx: loading.first_waiting(tx, 1), {ORDER}),
    "tallies": (tallies.read_tallies, {"tallies_pkey"}),
    "add": (lambda tx: tallies.add_tallies(tx, 0, 2, DISPOSITION), {"tallies_pkey"}),
    "reopen": (lambda tx: steps._reopen(tx, 2), {ORDER}),
    "made": (lambda tx: steps._made(tx, ["t/0"]), {"trajectories_pkey", "tasks_pkey"}),
    "trained": (lambda tx: removing._find_trained(tx, 0, 2, 10), {ORDER, "bodies_pkey"}),
    "answers": (
        lambda tx: removing._remove_evaluation(tx, ("heldout", "report", 0, 1), 10),
        {"tasks_by_evaluation", "bodies_pkey"},
    ),
    "removed": (lambda tx: removing._removed_of(tx, ["t/0"]), {"tasks_pkey"}),
    "memory": (lambda tx: rows.read_part(tx, 0, 1, rows.BEGINNING), {"memory_pkey"}),
    "steps": (lambda tx: told(tx).steps(), {"tallies_pkey"}),
    "dispositions": (lambda tx: told(tx).dispositions(), {ORDER, "tallies_pkey"}),
}


def told(tx):
    """A reader that asks what people ask, in a transaction that it is given."""
    from rollout.ledger.postgres.reader import PostgresReader

    class Reader(PostgresReader):
        def __init__(self):
            self.where, self.have = "", removing.SINCE_FORMAT

        _tx = tx

    return Reader()


@pytest.fixture
async def explained(open_ledger, read_ledger, tmp_path):
    """A transaction that notes how the server means to find what every statement asks for."""
    import psycopg

    from rollout.ledger.postgres.transaction import (
        SERVER_CLOCK,
        PostgresTransaction,
        _translate,
        named_rows,
    )

    class Explained(PostgresTransaction):
        def __init__(self, connection):
            super().__init__(connection, SERVER_CLOCK, {})
            self.plans = []

        def execute(self, sql, values=()):
            found = self._connection.execute(f"EXPLAIN (FORMAT JSON) {_translate(sql)}", values)
            self.plans += [(sql, node) for node in nodes_of(found.fetchone()[0][0]["Plan"])]
            return super().execute(sql, values)

    ledger = open_ledger(tmp_path, Clock(), Limits())
    learner, actor = await started(ledger, 4)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases[:2]])
    await ledger.commit(step_commit(1, range(1), learner))
    await ledger.close()
    with read_ledger(tmp_path) as reader:
        dsn = reader._address.dsn
    with psycopg.connect(dsn, row_factory=named_rows) as connection:
        connection.execute("SET LOCAL enable_seqscan = off")
        yield Explained(connection)
        connection.rollback()


def nodes_of(plan):
    """A plan's steps, outermost first."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_statement_finds_what_it_asks_for_by_an_index(explained, name):
    question, wanted = QUESTIONS[name]

    question(explained)

    scans = [(sql, node) for sql, node in explained.plans if "Scan" in node["Node Type"]]
    whole = [
        (sql, json.dumps(node))
        for sql, node in scans
        if node.get("Relation Name") in GROWING
        and node["Node Type"] != "Bitmap Heap Scan"
        and "Index Cond" not in node
    ]
    assert whole == []
    assert wanted <= {node.get("Index Name") for _, node in scans}


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_leases_of_evaluations_are_found_among_what_is_leased(explained):
    explained._connection.execute(EVALUATED)
    explained._connection.execute("ANALYZE tasks")

    loading._eval_leases(explained)

    assert {node["Index Name"] for _, node in explained.plans if "Index Name" in node} <= LEASED

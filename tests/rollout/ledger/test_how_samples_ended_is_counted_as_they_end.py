"""Opening a ledger and counting what ended read no finished work, and give what a count of everything gives."""

import sqlite3
from collections import Counter

import pytest
from ledger_kit import (
    IDENTITY,
    NUM_SAMPLES,
    Clock,
    admission,
    claim_request,
    consume,
    finished,
    started,
    step_commit,
    version,
)
from postgres_server import shared_server

from rollout.ledger.formats import list_migrations
from rollout.ledger.records import Disposition, Limits
from rollout.ledger.sql.loading import load
from rollout.ledger.sql.tallies import count_dispositions
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader

SHORT, LONG = 12, 48
KNOWN = len(list_migrations("rollout.ledger.sqlite"))
LATER = (
    *(("run", f"removed_{what}") for what in ("step", "ordinal", "bodies", "bytes")),
    ("evaluations", "removed"),
    ("run", "memory_step"),
)
"""Columns of later formats."""
QUESTIONS = {
    "load": lambda reader: load(reader._tx),
    "dispositions": lambda reader: reader.dispositions(),
}


def ended(ordinal, kind):
    return tuple(
        Disposition(task_id=f"t/{ordinal}", sample=sample, kind=kind, reason="drawn")
        for sample in range(NUM_SAMPLES)
    )


async def fill(ledger, num_steps):
    """A run of steps of one group each, and one group that waits."""
    learner, actor = await started(ledger, num_steps + 1)
    request = claim_request("actor-0", actor, tasks_max=num_steps)
    leases = (await ledger.claim(request)).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    for step in range(1, num_steps + 1):
        gone = ((0, step - 1),)
        await ledger.commit(step_commit(step, range(step - 1, step), learner, retired=gone))
    return learner


@pytest.fixture
async def histories(tmp_path):
    """The ledgers of a short and of a long run."""
    for num_steps in (SHORT, LONG):
        ledger = SqliteLedger(tmp_path / f"{num_steps}.db", IDENTITY, Limits(), Clock())
        await fill(ledger, num_steps)
        await ledger.close()
    return tmp_path


def count_steps(path, question):
    """How many steps of SQLite's machine a question takes."""
    counts = Counter()
    with LedgerReader(path) as reader:
        reader._tx._connection.set_progress_handler(lambda: counts.update(steps=1), 1)
        question(reader)
    return counts["steps"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_costs_the_same_after_four_times_as_many_steps(histories, name):
    short, long = (count_steps(histories / f"{n}.db", QUESTIONS[name]) for n in (SHORT, LONG))

    assert short > 0
    assert long <= short * 1.02, f"{short} steps of the machine, then {long}"


async def test_a_fork_counts_what_the_live_lineage_kept(open_ledger, read_ledger, tmp_path):
    ledger = open_ledger(tmp_path, Clock(), Limits())
    learner, actor = await started(ledger, 6)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases[:4]])
    first = (*consume(range(1)), *ended(1, "filtered"))
    await ledger.commit(step_commit(1, range(2), learner, dispositions=first))
    dead = (*consume(range(2, 3)), *ended(3, "filtered"), *ended(4, "expired"))
    await ledger.commit(step_commit(2, range(2, 5), learner, dispositions=dead))
    assert (await ledger.load()).dispositions == {
        "consumed": 4 - 2 + 2,
        "filtered": 4,
        "expired": 2,
    }

    await ledger.fork(learner, 1, version(1, 1), "chain-1-1", "digest differs")
    assert (await ledger.load()).dispositions == {"consumed": 2, "filtered": 2}
    again = consume(range(2, 3))
    await ledger.commit(step_commit(2, range(2, 3), learner, lineage=1, dispositions=again))
    await ledger.dispose(2, ended(3, "surplus"))
    await ledger.dispose(2, ended(4, "surplus"))
    await ledger.admit(admission(6, 7))
    counts = {"consumed": 4, "filtered": 2, "surplus": 4}
    assert (await ledger.load()).dispositions == counts
    await ledger.close()

    with read_ledger(tmp_path) as reader:
        assert reader.dispositions() == {**counts, "pending": 2 * NUM_SAMPLES}
        assert count_dispositions(reader._tx) == counts
        assert [view.num_consumed for view in reader.steps()] == [2, 2]


async def test_a_ledger_from_before_is_counted_once_when_it_is_opened(
    open_ledger, read_ledger, tmp_path
):
    ledger = open_ledger(tmp_path, Clock(), Limits())
    await fill(ledger, SHORT)
    await ledger.close()
    with read_ledger(tmp_path) as reader:
        now = reader.dispositions()
        take_tallies_away(reader, tmp_path)

    with read_ledger(tmp_path) as reader:
        assert (reader.have, reader.dispositions()) == (3, now)
        assert reader.state().dispositions == {"consumed": SHORT * NUM_SAMPLES}
        assert [view.num_consumed for view in reader.steps()] == [NUM_SAMPLES] * SHORT
    await open_ledger(tmp_path, Clock(), Limits()).close()
    with read_ledger(tmp_path) as reader:
        assert (reader.have, reader.dispositions()) == (KNOWN, now)
        assert [view.num_consumed for view in reader.steps()] == [NUM_SAMPLES] * SHORT


def take_tallies_away(reader, folder):
    """The ledger as the release before wrote it."""
    if isinstance(reader, LedgerReader):
        with sqlite3.connect(folder / "ledger.db") as connection:
            connection.execute("DROP TABLE tallies")
            connection.execute("DROP TABLE lives")
            connection.execute("DROP TABLE memory")
            for table, column in LATER:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
            connection.execute("DELETE FROM sqlite_stat1 WHERE tbl = 'tallies'")
            connection.execute("PRAGMA user_version = 3")
        return
    schema = reader._address.schema
    shared_server().query(f'DROP TABLE "{schema}".tallies, "{schema}".lives, "{schema}".memory')
    for table, column in LATER:
        shared_server().query(f'ALTER TABLE "{schema}".{table} DROP COLUMN {column}')
    shared_server().query(f'DELETE FROM "{schema}".schema_version WHERE version > 3')

"""A ledger says its format, and the format of the run's identity: an older one goes on, any other is refused with both numbers.

``formats/ledger-2.sql`` is a ledger as the release before ledgers said an identity format wrote it: eight tasks,
six results, two steps, an anchor, an event, live settings.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from books import tallied
from ledger_kit import IDENTITY, Clock, finished, step_commit

from rollout.errors import LedgerBelongsToAnotherRun, LedgerError
from rollout.ledger.formats import READ_FROM, list_migrations
from rollout.ledger.records import ClaimRequest, Limits, RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader

DUMP = Path(__file__).parent / "formats" / "ledger-2.sql"
KNOWN = len(list_migrations("rollout.ledger.sqlite"))
NOW = RunIdentity(
    uid=IDENTITY.uid, name=IDENTITY.name, spec_digest=IDENTITY.spec_digest, identity_format=2
)


@pytest.fixture
def older(tmp_path):
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(DUMP.read_text())
    connection.close()
    return path


def set_format(path, number):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.close()


def other(**changes):
    named = {"uid": NOW.uid, "name": NOW.name, "spec_digest": NOW.spec_digest, "identity_format": 2}
    return RunIdentity(**{**named, **changes})


async def test_an_older_ledger_goes_on_where_it_stood(older):
    ledger = SqliteLedger(older, NOW, Limits(), Clock())
    state = await ledger.load()
    assert (state.head.step, state.head.chain, state.next_admitted) == (2, "chain-0-2", 8)
    assert [anchor.name for anchor in state.anchors] == ["step-000002"]
    assert state.settings["generation"] == 3
    learner = (await ledger.register("learner", "learner")).incarnation
    actor = (await ledger.register("actor-0", "actor")).incarnation
    claims = await ledger.claim(
        ClaimRequest(
            worker="actor-0",
            incarnation=actor,
            tasks_max=8,
            held=(),
            lease_seconds=30.0,
            lineage=0,
            step=2,
            ordinal_end=8,
        )
    )
    assert [lease.task.task_id for lease in claims.leases] == ["t/6", "t/7"]
    verdicts = await ledger.submit("actor-0", actor, [finished(one) for one in claims.leases])
    assert all(one.accepted for one in verdicts)
    assert learner == 2
    await ledger.commit(step_commit(3, range(4, 6), incarnation=learner))
    await ledger.close()
    with LedgerReader(older) as reader:
        assert [record.step for record in reader.steps()] == [1, 2, 3]


def test_an_older_ledger_is_read_as_it_is(older):
    before = older.read_bytes()
    with LedgerReader(older) as reader:
        assert [record.step for record in reader.steps()] == [1, 2]
    assert older.read_bytes() == before


async def test_an_older_ledger_counts_how_its_samples_ended_before_and_after_it_is_opened(older):
    with LedgerReader(older) as reader:
        before = reader.dispositions()
        consumed = [view.num_consumed for view in reader.steps()]
    ledger = SqliteLedger(older, NOW, Limits(), Clock())
    state = await ledger.load()
    await ledger.close()
    assert consumed == [4, 4]
    assert before == {"consumed": 8, "pending": 8}
    assert state.dispositions == {"consumed": 8}
    with sqlite3.connect(older) as connection:
        assert tallied(connection) == []
    with LedgerReader(older) as reader:
        assert reader.dispositions() == before
        assert [view.num_consumed for view in reader.steps()] == consumed


async def test_an_opened_ledger_has_the_newest_format_and_says_how_its_digest_was_made(older):
    await SqliteLedger(older, NOW, Limits(), Clock()).close()
    connection = sqlite3.connect(older)
    assert connection.execute("PRAGMA user_version").fetchone() == (KNOWN,)
    assert connection.execute("SELECT identity_format FROM run").fetchone() == (2,)
    connection.close()


async def test_a_digest_of_another_identity_format_is_refused_with_both_numbers(tmp_path, older):
    path = tmp_path / "new.db"
    await SqliteLedger(path, NOW).close()
    changed = other(spec_digest="blake3:" + "1" * 64, identity_format=3)
    with pytest.raises(
        LedgerBelongsToAnotherRun, match=r"identity format 2, this version of rollout writes 3"
    ):
        SqliteLedger(path, changed)
    with pytest.raises(
        LedgerBelongsToAnotherRun, match=r"format none \(written before .* writes 3 .*go on with"
    ):
        SqliteLedger(older, changed)
    with pytest.raises(LedgerBelongsToAnotherRun, match="with spec digest blake3:0"):
        SqliteLedger(path, other(spec_digest="blake3:" + "1" * 64))
    with pytest.raises(LedgerBelongsToAnotherRun, match="with UID uid-1, not uid-2"):
        SqliteLedger(path, other(uid="uid-2", identity_format=3))


@pytest.mark.parametrize("opens", [lambda path: SqliteLedger(path, NOW), LedgerReader])
def test_a_newer_ledger_is_refused_with_both_numbers_and_left_alone(older, opens):
    set_format(older, KNOWN + 1)
    before = older.read_bytes()
    with pytest.raises(LedgerError, match=f"has format {KNOWN + 1}, .* knows {KNOWN}: .*newer"):
        opens(older)
    assert older.read_bytes() == before


def test_a_ledger_that_is_too_old_to_read_says_what_reads_it(older):
    set_format(older, READ_FROM - 1)
    with pytest.raises(
        LedgerError, match=f"has format {READ_FROM - 1}, .* reads {READ_FROM} to {KNOWN}: resume"
    ):
        LedgerReader(older)


def test_both_databases_have_one_format():
    assert [item.name for item in list_migrations("rollout.ledger.sqlite")] == [
        item.name for item in list_migrations("rollout.ledger.postgres")
    ]

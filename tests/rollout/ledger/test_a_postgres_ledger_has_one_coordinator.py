"""Who may open a run's schema, and who writes when two think that they may."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from ledger_kit import IDENTITY, admission, claim_request, finished, started
from postgres_server import shared_server, why_not

from rollout.errors import LedgerBelongsToAnotherRun, LedgerError, LedgerSuperseded

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def open_as(uid, dsn=None, **changes):
    from rollout.ledger.postgres.ledger import PostgresLedger

    identity = msgspec.structs.replace(IDENTITY, uid=uid, **changes)
    return PostgresLedger(shared_server().dsn if dsn is None else dsn, identity)


@pytest.fixture
def uid(request):
    shared_server()
    return request.node.name


async def test_a_new_coordinator_goes_on_where_the_old_one_was_and_fences_it(uid):
    old = open_as(uid)
    _, actor = await started(old, 2)
    lease = (await old.claim(claim_request("actor-0", actor))).leases[0]
    new = open_as(uid)
    assert new.position == old.position
    for late in (
        old.submit("actor-0", actor, [finished(lease)]),
        old.admit(admission(2, 3)),
        old.load(),
    ):
        with pytest.raises(LedgerSuperseded, match="another coordinator has taken over"):
            await late
    assert (await new.load()).next_admitted == 2
    assert (await new.submit("actor-0", actor, [finished(lease)]))[0].accepted
    await old.close()
    await new.close()


async def test_a_takeover_sees_every_write_that_the_old_coordinator_was_told_is_done(uid):
    ledger, acknowledged = open_as(uid), 1
    await started(ledger, 1)
    for _ in range(5):
        opening = asyncio.create_task(asyncio.to_thread(open_as, uid))
        with pytest.raises(LedgerSuperseded):
            while True:
                await ledger.admit(admission(acknowledged, acknowledged + 1))
                acknowledged += 1
        await ledger.close()
        ledger = await opening
        # One more may have come through whose answer was cut off.
        admitted = (await ledger.load()).next_admitted
        assert admitted in {acknowledged, acknowledged + 1}
        acknowledged = admitted
    await ledger.close()


async def test_many_that_open_at_once_make_one_schema_and_one_writer(uid):
    opened = await asyncio.gather(*(asyncio.to_thread(open_as, uid) for _ in range(4)))
    assert sorted(ledger.term for ledger in opened) == [1, 2, 3, 4]
    newest = max(opened, key=lambda ledger: ledger.term)
    await newest.admit(admission(0, 1))
    for ledger in opened:
        if ledger is not newest:
            with pytest.raises(LedgerSuperseded):
                await ledger.admit(admission(0, 1))
        await ledger.close()


async def test_runs_share_a_database_and_nothing_else(uid):
    one, two = open_as(f"{uid}-a"), open_as(f"{uid}-b")
    await started(one, 3)
    assert (await two.load()).next_admitted == 0
    await one.close()
    await two.close()


async def test_the_ledger_of_another_spec_is_refused(uid):
    await open_as(uid).close()
    with pytest.raises(
        LedgerBelongsToAnotherRun, match="belongs to run arithmetic with spec digest"
    ):
        open_as(uid, spec_digest="blake3:" + "1" * 64)


async def test_a_schema_of_a_newer_version_is_refused(uid):
    ledger = open_as(uid)
    await ledger.close()
    shared_server().query(f'INSERT INTO "{ledger.schema}".schema_version VALUES (99)')
    with pytest.raises(LedgerError, match="newer rollout"):
        open_as(uid)


async def test_a_failed_migration_leaves_nothing(uid, monkeypatch):
    from rollout.ledger.postgres import opening

    monkeypatch.setattr(opening, "_claim_identity", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_as(uid)
    monkeypatch.undo()
    ledger = open_as(uid)
    assert ledger.term == 1
    await ledger.close()


def test_no_message_holds_the_password():
    shared_server()
    for dsn in ("postgresql://me:geheim@[broken", "host=nowhere.invalid password=geheim dbname"):
        with pytest.raises(LedgerError) as caught:
            open_as("uid-1", dsn)
        assert "geheim" not in str(caught.value)
    with pytest.raises(LedgerError, match="correct the connection string") as caught:
        open_as("uid-1", shared_server().dsn.replace("/postgres", "/absent") + "?password=geheim")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("uid", "schema"),
    [
        ("4f1c5a9e-0000-4000-8000-000000000001", "rollout_4f1c5a9e_0000_4000_8000_000000000001"),
        ("Mixed", "rollout_mixed_"),
        ("a" * 80, "rollout_" + "a" * 38 + "_"),
    ],
)
def test_a_schema_is_named_after_its_run(uid, schema):
    from rollout.ledger.postgres.address import schema_of

    assert schema_of(uid).startswith(schema)
    assert len(schema_of(uid)) <= 63


def test_no_two_runs_share_a_schema():
    from rollout.ledger.postgres.address import schema_of

    uids = ["a-b", "a_b", "a.b", "A-b", "a--b"]
    assert len({schema_of(uid) for uid in uids}) == len(uids)

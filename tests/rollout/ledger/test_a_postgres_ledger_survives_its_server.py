"""Connections cut, answers lost, the server restarted, hung, rewound: each write happens once, or is refused."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from ledger_kit import (
    IDENTITY,
    NUM_SAMPLES,
    TERM,
    admission,
    claim_request,
    finished,
    started,
    step_commit,
    version,
)
from postgres_server import shared_server
from wire import BEGUN, COMMITTED, Proxy

from rollout.errors import LedgerFull, LedgerRewound, LedgerUnreachable

STEPS = 12

pytestmark = pytest.mark.process


def open_at(dsn, uid="uid-1", **settings):
    from rollout.ledger.postgres.executor import ExecutorSettings
    from rollout.ledger.postgres.ledger import PostgresLedger

    identity = msgspec.structs.replace(IDENTITY, uid=uid)
    return PostgresLedger(
        dsn, identity, None, ExecutorSettings(**{"patience_seconds": 30.0, **settings})
    )


@pytest.fixture
def wire():
    """A proxy to the shared server."""
    proxy = Proxy(shared_server().port)
    yield proxy
    proxy.close()


@pytest.fixture
async def wired(wire, request):
    """A ledger at the other end of the wire, whose operations take turns on one connection."""
    server = shared_server()
    ledger = open_at(server.at(wire.port), uid=request.node.name, lanes=1)
    yield ledger
    await ledger.close()


async def sampled(ledger, num_tasks):
    learner, actor = await started(ledger, num_tasks)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    return learner, actor


async def new_incarnation(ledger, learner, actor):
    await ledger.claim(claim_request("actor-0", actor))
    done = await ledger.register("actor-0", "actor")
    assert done.incarnation == actor + 1
    assert done.freed.opened == ("t/2", "t/3")


async def new_tasks(ledger, learner, actor):
    await ledger.admit(admission(4, 6))
    assert (await ledger.load()).next_admitted == 6


async def new_leases(ledger, learner, actor):
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    assert [(lease.task.ordinal, lease.epoch) for lease in leases] == [(2, 1), (3, 1)]


async def new_step(ledger, learner, actor):
    await ledger.commit(step_commit(1, range(2), learner))
    assert (await ledger.load()).dispositions == {"consumed": 2 * NUM_SAMPLES}


async def new_lineage(ledger, learner, actor):
    assert await ledger.fork(learner, 0, version(0, 1), "chain", "digest differs") == 1
    assert (await ledger.load()).lineage == 1


async def new_event(ledger, learner, actor):
    await ledger.add_event("noted", "", {})


CHANGES = [new_incarnation, new_tasks, new_leases, new_step, new_lineage, new_event]


@pytest.mark.parametrize("lost", [BEGUN, COMMITTED], ids=["the-begin", "the-commit"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_write_whose_answer_is_lost_happens_once(wired, wire, change, lost):
    learner, actor = await sampled(wired, 2)
    await wired.admit(admission(2, 4))
    before = wired.position
    wire.arm(lost)
    await change(wired, learner, actor)
    assert wire.fired.is_set()
    # ``new_incarnation`` claims first.
    assert wired.position == before + 1 + (change is new_incarnation)


async def test_a_commit_that_is_still_on_its_way_is_waited_for(server):
    """The server hangs in the commit when its connection is lost: the repetition must not overtake it."""
    proxy = Proxy(server.port)
    ledger = open_at(server.at(proxy.port), lanes=1)
    _, actor = await started(ledger, 2)
    server.query("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.query("SELECT pg_reload_conf()")
    work = asyncio.create_task(ledger.register("actor-0", "actor"))
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    while not server.query(waiting):
        await asyncio.sleep(0.02)
    proxy.cut()
    looking = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while not server.query(looking):
        await asyncio.sleep(0.02)
    assert not work.done()
    server.query("ALTER SYSTEM RESET synchronous_standby_names")
    server.query("SELECT pg_reload_conf()")
    assert (await work).incarnation == actor + 1
    await ledger.close()
    proxy.close()


async def work_through(ledger, learner, actor):
    """Sample and commit ``STEPS`` steps of two tasks, recording every position."""
    positions = [ledger.position]
    for step in range(1, STEPS + 1):
        leases = (await ledger.claim(claim_request("actor-0", actor, tasks_max=2))).leases
        assert [lease.epoch for lease in leases] == [1, 1]
        for lease in leases:
            assert (await ledger.submit("actor-0", actor, [finished(lease)]))[0].accepted
        await ledger.commit(step_commit(step, range(2 * step - 2, 2 * step), learner))
        positions.append(ledger.position)
        await asyncio.sleep(0.02)
    assert positions == sorted(set(positions))


async def check_books(ledger):
    state = await ledger.load()
    assert state.head.step == STEPS
    assert state.dispositions == {"consumed": STEPS * 2 * NUM_SAMPLES}
    assert len({i for r in await ledger.records_after(0) for i in r.consumed}) == (
        STEPS * 2 * NUM_SAMPLES
    )


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_a_server_that_is_restarted_costs_time_alone(server, ending):
    ledger = open_at(server.dsn)
    learner, actor = await started(ledger, 2 * STEPS)
    work = asyncio.create_task(work_through(ledger, learner, actor))
    for _ in range(3):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(getattr(server, ending))
        await asyncio.to_thread(server.start)
    await work
    await check_books(ledger)
    await ledger.close()


async def test_connections_cut_at_any_moment_cost_time_alone(server):
    ledger = open_at(server.dsn)
    learner, actor = await started(ledger, 2 * STEPS)
    work = asyncio.create_task(work_through(ledger, learner, actor))
    chance, cuts = random.Random(5), 0
    while not work.done():
        ended = await asyncio.to_thread(
            server.query,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rollout'",
        )
        cuts += len(ended)
        await asyncio.sleep(chance.uniform(0.1, 0.3))
    await work
    assert cuts > 0
    await check_books(ledger)
    await ledger.close()


async def test_a_server_that_hangs_is_given_up_by_name_and_goes_on_later(server):
    ledger = open_at(server.dsn, patience_seconds=4.0, silence_seconds=2.0)
    await started(ledger, 2)
    pids = server.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(LedgerUnreachable, match=f"127.0.0.1:{server.port}/postgres"):
            await ledger.admit(admission(2, 3))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    await ledger.admit(admission(2, 4))
    assert (await ledger.load()).next_admitted == 4
    await ledger.close()


async def test_a_server_that_stays_away_is_named_and_nothing_is_lost(server):
    ledger = open_at(server.dsn, patience_seconds=0.5)
    await started(ledger, 2)
    server.stop()
    with pytest.raises(LedgerUnreachable, match=f"127.0.0.1:{server.port}.*bring the server back"):
        await ledger.load()
    with pytest.raises(LedgerUnreachable, match="start it, or correct the connection string"):
        await asyncio.to_thread(open_at, server.dsn, patience_seconds=0.1)
    server.start()
    assert (await ledger.load()).next_admitted == 2
    await ledger.close()


async def test_a_failover_that_lost_acknowledged_writes_is_told_loudly(server):
    ledger = open_at(server.dsn)
    await started(ledger, 2)
    server.stop()
    shutil.copytree(server.data, server.folder / "replica")
    server.start()
    await ledger.admit(admission(2, 3))
    server.stop()
    shutil.rmtree(server.data)
    subprocess.run(["mv", server.folder / "replica", server.data], check=True)
    subprocess.run(["chown", "-R", f"{server.folder.stat().st_uid}", server.data], check=True)
    server.start()
    with pytest.raises(LedgerRewound, match="lost writes that it had acknowledged"):
        await ledger.admit(admission(3, 4))
    with pytest.raises(LedgerRewound):
        await ledger.load()
    await ledger.close()


async def test_leases_end_by_the_servers_clock_whatever_ours_says(monkeypatch, request):
    ledger = open_at(shared_server().dsn, uid=request.node.name)
    _, actor = await started(ledger, 1)
    other = (await ledger.register("actor-1", "actor")).incarnation
    monkeypatch.setattr(time, "time", lambda: 4e9)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    assert abs(lease.leased_at - time.clock_gettime(time.CLOCK_REALTIME)) < TERM
    assert (await ledger.claim(claim_request("actor-1", other))).leases == ()
    assert await ledger.renew("actor-0", actor, [lease.task.task_id], 0.1) == ()
    while not (taken := (await ledger.claim(claim_request("actor-1", other))).leases):
        await asyncio.sleep(0.05)
    assert taken[0].epoch == lease.epoch + 1
    await ledger.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_a_full_disk_of_the_server_loses_nothing_committed(request):
    server = shared_server()
    disk = Path(tempfile.mkdtemp(prefix="rollout-pg-disk-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine does not let root mount")
    try:
        os.chown(disk, server.folder.stat().st_uid, -1)
        server.query(f"CREATE TABLESPACE small LOCATION '{disk}'")
        ledger = open_at(f"{server.dsn}?options=-c%20default_tablespace%3Dsmall", request.node.name)
        learner, _ = await sampled(ledger, 2)
        await ledger.commit(step_commit(1, range(2), learner))
        admitted = 2
        with pytest.raises(LedgerFull, match="nothing committed is lost"):
            while True:
                await ledger.admit(admission(admitted, admitted + 50))
                admitted += 50
        assert (await ledger.load()).next_admitted == admitted
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        await ledger.admit(admission(admitted, admitted + 50))
        state = await ledger.load()
        assert (state.head.step, state.next_admitted) == (1, admitted + 50)
        await ledger.close()
        server.query(f'DROP SCHEMA "{ledger.schema}" CASCADE')
        server.query("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()

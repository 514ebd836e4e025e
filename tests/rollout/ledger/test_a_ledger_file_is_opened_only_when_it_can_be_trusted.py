import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ledger_kit import (
    IDENTITY,
    Clock,
    admission,
    claim_request,
    finished,
    started,
    step_commit,
)

from rollout.errors import (
    LedgerBelongsToAnotherRun,
    LedgerBroken,
    LedgerError,
    LedgerFull,
)
from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sqlite import opening
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader


def open_ledger(path, identity=IDENTITY):
    return SqliteLedger(path, identity, Limits(), Clock())


async def filled(path, steps=3):
    """A ledger with a few committed steps."""
    ledger = open_ledger(path)
    _, actor = await started(ledger, 2 * steps)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    for step in range(1, steps + 1):
        await ledger.commit(step_commit(step, range(2 * step - 2, 2 * step)))
    return ledger


@pytest.mark.parametrize("change", [{"uid": "uid-2"}, {"spec_digest": "blake3:" + "1" * 64}])
async def test_the_ledger_of_another_run_or_spec_is_refused(tmp_path, change):
    path = tmp_path / "ledger.db"
    await (await filled(path)).close()
    other = RunIdentity(
        **{"uid": IDENTITY.uid, "name": "other", "spec_digest": IDENTITY.spec_digest, **change}
    )
    with pytest.raises(LedgerBelongsToAnotherRun, match="belongs to run arithmetic"):
        open_ledger(path, other)
    again = open_ledger(path)
    assert (await again.load()).head.step == 3
    await again.close()


async def test_a_second_coordinator_is_kept_out_until_the_first_is_gone(tmp_path):
    path = tmp_path / "ledger.db"
    first = open_ledger(path)
    with pytest.raises(LedgerError, match="in use by another coordinator"):
        open_ledger(path)
    await first.close()
    await open_ledger(path).close()


@pytest.mark.parametrize("damage", ["text", "truncated", "scribbled"])
async def test_a_damaged_file_is_told_and_left_alone(tmp_path, damage):
    path = tmp_path / "ledger.db"
    await (await filled(path)).close()
    whole = path.read_bytes()
    broken = {
        "text": b"not a database at all" * 100,
        "truncated": whole[: len(whole) // 2],
        "scribbled": whole[:8192] + os.urandom(16384) + whole[8192 + 16384 :],
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(LedgerBroken, match="restore it from a copy"):
        open_ledger(path)
    assert path.read_bytes() == broken


async def test_a_file_of_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "ledger.db"
    await (await filled(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerError, match="newer rollout"):
        open_ledger(path)


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "file_system_of", lambda path: "nfs4")
    with pytest.raises(LedgerError, match="network file system \\(nfs4\\)"):
        open_ledger(tmp_path / "ledger.db")


def test_the_file_system_of_a_path_is_found():
    assert opening.file_system_of(Path("/proc/self/status")) == "proc"
    assert opening.file_system_of(Path("/tmp")) not in opening.NETWORK_FILE_SYSTEMS


async def test_every_acknowledged_write_is_flushed_to_the_disk(tmp_path):
    ledger = open_ledger(tmp_path / "ledger.db")
    connection = ledger._writer._connection
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    await ledger.close()


async def test_the_first_commits_do_not_wait_for_a_log_that_grows(tmp_path):
    path, log = tmp_path / "ledger.db", tmp_path / "ledger.db-wal"
    ledger = open_ledger(path)
    length = log.stat().st_size
    for number in range(40):
        await ledger.admit(admission(50 * number, 50 * number + 50))
    assert log.stat().st_size == length == opening.LOG_BYTES
    await ledger.close()


@pytest.mark.parametrize("steps", [0, 3])
async def test_one_whose_machine_stopped_with_a_log_of_full_length_goes_on(tmp_path, steps):
    path = tmp_path / "ledger.db"
    ledger = await filled(path, steps) if steps else open_ledger(path)
    left = tmp_path / "left"
    left.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copy(tmp_path / name, left / name)
    await ledger.close()
    again = open_ledger(left / "ledger.db")
    assert (left / "ledger.db-wal").stat().st_size == opening.LOG_BYTES
    assert (await again.load()).next_admitted == 2 * steps
    await again.admit(admission(2 * steps, 2 * steps + 1))
    await again.close()
    last = open_ledger(left / "ledger.db")
    assert (await last.load()).next_admitted == 2 * steps + 1
    await last.close()


async def fill_disk(ledger, path):
    """Admit tasks until the disk is full; returns how many were acknowledged."""
    admitted = 0
    with pytest.raises(LedgerFull, match="nothing committed is lost"):
        while True:
            await ledger.admit(admission(admitted, admitted + 50))
            admitted += 50
    return admitted


async def test_a_full_disk_loses_nothing_committed_and_the_run_goes_on_after_it(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = await filled(path)
    connection = ledger._writer._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 20}")
    admitted = max(await fill_disk(ledger, path), 6)
    state = await ledger.load()
    assert (state.head.step, state.next_admitted) == (3, admitted)
    connection.execute("PRAGMA max_page_count = 100000")
    await ledger.admit(admission(admitted, admitted + 50))
    assert (await ledger.load()).next_admitted == admitted + 50
    await ledger.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_a_really_full_disk_does_the_same(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not let root mount")
    try:
        ledger = await filled(disk / "ledger.db")
        admitted = max(await fill_disk(ledger, disk), 6)
        await ledger.close()
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        ledger = open_ledger(disk / "ledger.db")
        state = await ledger.load()
        assert (state.head.step, state.next_admitted) == (3, admitted)
        await ledger.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.append({kit!r})
from ledger_kit import IDENTITY, admission
from rollout.ledger.sqlite.ledger import SqliteLedger

async def main():
    ledger = SqliteLedger(Path({path!r}), IDENTITY)
    for n in range(100000):
        await ledger.admit(admission(n, n + 1))
        print(n, flush=True)

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("acknowledged", [1, 40, 200])
async def test_what_was_acknowledged_survives_a_kill(tmp_path, acknowledged):
    path = tmp_path / "ledger.db"
    script = textwrap.dedent(WRITER.format(kit=str(Path(__file__).parent), path=str(path)))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= acknowledged:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    ledger = open_ledger(path)
    state = await ledger.load()
    assert state.next_admitted >= last + 1
    assert len(state.groups) == state.next_admitted
    await ledger.close()


async def test_people_read_beside_a_live_run(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = await filled(path)
    with LedgerReader(path) as reader:
        assert reader.run().step == 3
        assert [step.chain for step in reader.steps()] == ["chain-0-1", "chain-0-2", "chain-0-3"]
        assert reader.steps(after=2)[0].metrics["reward"] == 0.5
        best = reader.samples(2, sort="reward")
        assert [view.trajectory.reward for view in best] == [1.0, 1.0, 0.0, 0.0]
        assert [view.place for view in reader.samples(2)] == [0, 1, 2, 3]
        trace = reader.trace(best[0].trajectory_id.removeprefix("blake3:")[:16])
        assert trace.trajectory_id == best[0].trajectory_id
        assert [attempt.ending for attempt in trace.attempts] == ["accepted"]
        assert [(c.kind, c.step) for c in trace.consumptions] == [("consumed", 2)]
        assert trace.version_after.step == 2
        assert reader.dispositions() == {"consumed": 12, "pending": 0}
        await ledger.admit(admission(6, 7))
        assert reader.dispositions() == {"consumed": 12, "pending": 2}
    await ledger.close()


def test_a_missing_ledger_is_told(tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger"):
        LedgerReader(tmp_path / "ledger.db")


async def test_one_whose_maker_died_before_the_run_began_is_told_to_its_readers(tmp_path):
    path = tmp_path / "ledger.db"
    await open_ledger(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("DELETE FROM run")
    with pytest.raises(LedgerError, match="names no run yet"):
        LedgerReader(path)

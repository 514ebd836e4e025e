"""Whatever moment a removal dies at, the ledger says the truth of each body, and the next one goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from books import check_books
from ledger_kit import IDENTITY, Clock, claim_request, finished, started, step_commit
from test_bodies_go_when_nothing_needs_them import STEPS, anchor, evaluate, fill

from rollout.ledger.records import Limits
from rollout.ledger.sql import removing
from rollout.ledger.sqlite.ledger import SqliteLedger

STATEMENTS_MAX = 60


class KilledError(Exception):
    """Stands for the end of the process between two statements."""


class Dying:
    """A transaction that ends with its n-th statement."""

    def __init__(self, tx, statements):
        self._tx, self._left = tx, statements

    def __getattr__(self, name):
        return getattr(self._tx, name)

    def execute(self, sql, values=()):
        if self._left == 0:
            raise KilledError
        self._left -= 1
        return self._tx.execute(sql, values)


async def observe(ledger, reader):
    views = [reader.samples(step) for step in range(1, STEPS + 1)]
    answers = [reader.evaluation_samples("heldout", "report", step) for step in (0, 1, 2, 5)]
    return views, answers, reader.removed(), reader.dispositions(), await ledger.records_after(0)


async def test_between_any_two_statements(open_ledger, read_ledger, tmp_path, monkeypatch):
    remove = removing.remove_bodies
    ledger = open_ledger(tmp_path, Clock(), Limits())
    _, actor = await fill(ledger)
    await evaluate(ledger, actor, 0, 1, 2, 5)
    with read_ledger(tmp_path) as reader:
        before = await observe(ledger, reader)

    for statements in range(STATEMENTS_MAX):
        monkeypatch.setattr(
            removing,
            "remove_bodies",
            lambda tx, step, num, left=statements: remove(Dying(tx, left), step, num),
        )
        try:
            done = await ledger.remove_bodies(4, 100)
        except KilledError:
            await ledger.close()
            ledger = open_ledger(tmp_path, Clock(), Limits())
            with read_ledger(tmp_path) as reader:
                assert await observe(ledger, reader) == before
        else:
            break
    assert statements > 5
    assert (done.num_bodies, done.more) == (8 + 6, False)
    await ledger.close()


@pytest.mark.parametrize("bodies", [1, 7, 20, 41])
async def test_by_the_kernel_while_it_removes(tmp_path, bodies):
    """SQLite: a process of its own removes body by body, and is killed without a word."""
    path = tmp_path / "ledger.db"
    ledger = SqliteLedger(path, IDENTITY, Limits())
    learner, actor = await started(ledger, 60)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    for step in range(1, 31):
        await ledger.commit(step_commit(step, range(2 * step - 2, 2 * step), learner))
    await ledger.save_anchor(learner, anchor(25))
    await ledger.close()

    child = subprocess.Popen(
        [sys.executable, "-c", REMOVER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    told = [int(child.stdout.readline()) for _ in range(bodies)]
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    assert check_books(path, 60) == []
    ledger = SqliteLedger(path, IDENTITY, Limits())
    rest = await ledger.remove_bodies(25, 100)
    assert sum(told) == bodies
    assert 0 <= 50 - bodies - rest.num_bodies <= 50 - bodies
    assert [len((await ledger.batch_of(step)).bodies) for step in range(26, 31)] == [2] * 5
    await ledger.close()
    assert check_books(path, 60) == []


REMOVER = """
import asyncio, sys
from pathlib import Path
from ledger_kit import IDENTITY
from rollout.ledger.sqlite.ledger import SqliteLedger

async def main():
    ledger = SqliteLedger(Path(sys.argv[1]), IDENTITY)
    while True:
        done = await ledger.remove_bodies(25, 1)
        print(done.num_bodies, flush=True)

asyncio.run(main())
"""

"""The machine's clock may be set by hours while a run goes on: leases are counted on steadily."""

import time

import pytest
from ledger_kit import IDENTITY, claim_request, started

from rollout.ledger.sqlite.ledger import SqliteLedger, steady_clock

HOURS = 3600.0


@pytest.mark.parametrize("leap", [5 * HOURS, -5 * HOURS])
async def test_a_lease_lasts_its_term_when_the_clock_is_set(tmp_path, monkeypatch, leap):
    now, set_by = time.time(), [0.0]
    monkeypatch.setattr(time, "time", lambda: now + set_by[0])
    ledger = SqliteLedger(tmp_path / "ledger.db", IDENTITY)
    _, actor = await started(ledger)
    other = (await ledger.register("actor-1", "actor")).incarnation
    held = (await ledger.claim(claim_request("actor-0", actor))).leases
    set_by[0] = leap
    taken = (await ledger.claim(claim_request("actor-1", other))).leases
    tasks = [lease.task.task_id for lease in held]
    assert await ledger.renew("actor-0", actor, tasks, 30.0) == ()
    again = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.close()
    assert taken == ()
    assert all(abs(lease.expires_at - now) < HOURS for lease in again)


def test_a_steady_clock_begins_where_the_machines_stands(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    clock = steady_clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 103.0)
    assert clock() == 1.7e9 + 3.0

"""A coordinator notes who lived when: at once, once a minute, at its end, and through the ends of workers and of itself."""

from __future__ import annotations

import asyncio

import pytest
from coordinator_kit import FakeActor, FakeLearner, run_to_end, wait_for_outcome

from rollout.coordinator.context import Notifier
from rollout.coordinator.duties import lives as duty_of_lives
from rollout.coordinator.duties.lives import NOTE_SECONDS, Book, build_lives, note
from rollout.coordinator.state import Worker
from rollout.coordinator.status.progress import describe_progress
from rollout.errors import LedgerFull
from rollout.ledger.records import LifeNote
from rollout.ledger.sql.lives import read_lives


def place(role):
    return {"machine": "desk"} if role != "actor" else {"requests": [{"cpu": "1"}]}


def book():
    return Book(places=place, born=7)


def worker(name="actor-0", incarnation=1, seen=100.0):
    return Worker(name=name, role="actor", incarnation=incarnation, seen_at=seen)


def kept(found, workers, now, *, last=False):
    """One look; what it wrote, by worker and incarnation, with the moment."""
    notes = found.due(workers, now, last=last)
    found.written(notes, workers, now)
    return {(one.worker, one.incarnation): now - one.ago_seconds for one in notes}


def test_a_worker_is_noted_at_its_first_word_and_once_a_minute_from_then():
    found, one = book(), worker()
    writes = []
    for second in range(181):
        one.seen_at = 100.0 + second
        writes.append(kept(found, {"actor-0": one}, 100.0 + second))

    noted = [second for second, seen in enumerate(writes) if ("actor-0", 1) in seen]
    assert noted == [0, NOTE_SECONDS, 2 * NOTE_SECONDS, 3 * NOTE_SECONDS]
    assert sum(map(bool, writes)) == len(noted)


def test_who_is_not_heard_again_is_noted_to_its_last_word():
    found, one = book(), worker()
    kept(found, {"actor-0": one}, 100.0)
    one.seen_at = 130.0
    assert ("actor-0", 1) not in kept(found, {"actor-0": one}, 159.0)

    replaced = kept(found, {"actor-0": worker(incarnation=2, seen=160.0)}, 160.0)
    assert replaced[("actor-0", 1)] == 130.0
    assert replaced[("actor-0", 2)] == 160.0
    assert set(found.heard) == {("actor-0", 2)}


def test_the_last_look_writes_what_is_new_and_the_coordinator_itself():
    found, one, silent = book(), worker(), worker("actor-1")
    workers = {"actor-0": one, "actor-1": silent}
    kept(found, workers, 100.0)
    one.seen_at = 115.0

    assert kept(found, workers, 116.0, last=True) == {
        ("actor-0", 1): 115.0,
        ("coordinator", 7): 116.0,
    }


class FullLedger:
    """Has no room for the first writes."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.notes = refusals, list[LifeNote]()

    async def note_lives(self, notes):
        if self.refusals:
            self.refusals -= 1
            raise LedgerFull("no room")
        self.notes += notes

    async def lives(self):
        return ()


class FakeRun:
    def __init__(self, ledger) -> None:
        self.ledger, self.now = ledger, 100.0
        self.state = type("State", (), {"workers": {"actor-0": worker()}, "outcome": None})()
        self.usage, self.usage_settled, self.changed = (), True, Notifier()

    def clock(self):
        return self.now


async def test_what_a_full_disk_refused_is_written_by_a_later_note():
    run, found = FakeRun(FullLedger(1)), book()
    with pytest.raises(LedgerFull):
        await note(run, found)
    run.now = 103.0
    await note(run, found)

    assert {(one.worker, run.now - one.ago_seconds) for one in run.ledger.notes} == {
        ("actor-0", 100.0),
        ("coordinator", 103.0),
    }


async def test_the_end_of_a_run_is_noted_once_and_at_once():
    run, found = FakeRun(FullLedger(0)), book()
    await note(run, found)
    run.now, run.state.outcome = 130.0, "Succeeded"
    run.state.workers["actor-0"].seen_at = 129.0
    await note(run, found)
    at_the_end = run.ledger.notes[2:]
    run.now = 131.0
    await note(run, found)

    assert [(one.worker, one.ago_seconds) for one in at_the_end] == [
        ("actor-0", 1.0),
        ("coordinator", 0.0),
    ]
    assert len(run.ledger.notes) == 4


async def test_a_duty_that_is_ended_has_written_to_the_end(caplog):
    run = FakeRun(FullLedger(1))
    duty = asyncio.create_task(build_lives(place)(run))
    while run.ledger.refusals:
        await asyncio.sleep(0)
    duty.cancel()
    await asyncio.gather(duty, return_exceptions=True)

    assert {one.worker for one in run.ledger.notes} == {"actor-0", "coordinator"}
    assert "no room" in caplog.text


def test_lives_of_workers_go_on_through_a_new_coordinator(bench):
    def look(found):
        coordinator = bench.coordinator
        looked = note(coordinator.run, found, last=True)
        asyncio.run_coroutine_threadsafe(looked, coordinator.keeping.get_loop()).result(60)

    actor = FakeActor(bench.start())
    look(book())
    actor.client = bench.start()
    actor.claim()
    look(Book(places=place, born=8))
    told = describe_progress(bench.coordinator.run).usage
    bench.stop()

    assert [(one.role, one.requests) for one in told] == [("Actor", {"cpu": "1"})]

    with bench.reader() as reader, reader.snapshot() as tx:
        lives = read_lives(tx, reader.have)
    assert [(one.worker, one.incarnation) for one in lives if one.role == "actor"] == [
        ("actor-0", 1)
    ]
    assert sorted(one.incarnation for one in lives if one.role == "coordinator") == [7, 8]


async def test_no_end_waits_for_a_ledger_that_is_full(monkeypatch):
    monkeypatch.setattr(duty_of_lives, "LOOK_SECONDS", 0.0)
    run = FakeRun(FullLedger(1_000_000))
    duty = asyncio.create_task(build_lives(place)(run))
    await asyncio.sleep(0)
    assert not run.usage_settled
    ticket, run.state.outcome = run.changed.ticket(), "Succeeded"
    await asyncio.wait_for(ticket.wait(), 60)
    assert run.usage_settled
    duty.cancel()
    await asyncio.gather(duty, return_exceptions=True)


def test_the_operator_hears_of_the_end_with_all_that_was_used(bench, monkeypatch):
    monkeypatch.setattr(duty_of_lives, "LOOK_SECONDS", 600.0)
    client = bench.start()
    run, loop = bench.coordinator.run, bench.coordinator.keeping.get_loop()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)

    async def begin():
        duty = asyncio.create_task(build_lives(place)(run))
        while not await run.ledger.lives():
            await asyncio.sleep(0.01)
        return duty

    async def end(duty):
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)

    duty = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
    assert describe_progress(run).usage == ()  # a life that was noted once has no length yet
    run_to_end(actor, learner)
    learner.finish()
    wait_for_outcome(client)
    assert describe_progress(run).outcome is None
    asyncio.run_coroutine_threadsafe(end(duty), loop).result(60)

    told = describe_progress(run)
    assert told.outcome.kind == "Succeeded"
    assert [(one.role, one.milliseconds > 0) for one in told.usage] == [("Actor", True)]

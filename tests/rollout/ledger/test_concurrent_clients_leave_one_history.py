"""Clients at work at the same time, some slow, some replaced, some silent; their history is recorded and judged.

Every call is written down with what it was told. Afterwards: an epoch was given to one attempt; a result
was accepted at most once, from the newest epoch; each admitted sample has one disposition, or none yet;
nothing was consumed twice; positions never fell.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import pytest
from history_client import Client, Event
from ledger_kit import (
    IDENTITY,
    NUM_SAMPLES,
    admission,
    step_commit,
    version,
)
from postgres_server import shared_server

from rollout.ledger.records import Disposition, Limits

TASKS, PER_STEP, CLIENTS = 36, 2, 4
SECONDS_MAX = 240.0
LIMITS = Limits(failures_max=3, losses_max=1000)


@dataclass
class Learner:
    """Commits steps in order, each as soon as its tasks have ended, until all tasks have."""

    ledger: object
    incarnation: int
    events: list[Event]

    async def run(self) -> None:
        for step in range(1, TASKS // PER_STEP + 1):
            wanted = range((step - 1) * PER_STEP, step * PER_STEP)
            while True:
                groups = {g.task.ordinal: g for g in (await self.ledger.load()).groups}
                states = [groups[ordinal].state for ordinal in wanted]
                if all(state in {"done", "excluded"} for state in states):
                    break
                await asyncio.sleep(0.01)
            taken = tuple(
                Disposition(
                    task_id=f"t/{ordinal}",
                    sample=sample,
                    kind="consumed" if state == "done" else "excluded",
                    place=place,
                )
                for place, (ordinal, state, sample) in enumerate(
                    (ordinal, state, sample)
                    for ordinal, state in zip(wanted, states, strict=True)
                    for sample in range(NUM_SAMPLES)
                )
            )
            commit = step_commit(step, wanted, self.incarnation, dispositions=taken)
            await self.ledger.commit(commit)
            await self.ledger.commit(commit)


async def opened(ledger) -> int:
    learner = (await ledger.register("learner", "learner")).incarnation
    await ledger.publish_initial(learner, version(0), "chain-0-0")
    await ledger.admit(admission(0, TASKS))
    return learner


async def judge(ledger, events: list[Event]) -> None:
    state = await ledger.load()
    records = await ledger.records_after(0)
    assert len(records) == TASKS // PER_STEP
    given: dict[tuple[str, int], tuple[str, int]] = {}
    newest: Counter[str] = Counter()
    for event in (event for event in events if event.kind == "claimed"):
        key, whom = (event.task_id, event.epoch), (event.worker, event.incarnation)
        assert given.setdefault(key, whom) == whom, f"{key} was given to two attempts"
        newest[event.task_id] = max(newest[event.task_id], event.epoch)
    accepted: dict[str, Event] = {}
    for event in (event for event in events if event.kind == "accepted"):
        former = accepted.setdefault(event.task_id, event)
        assert (former.epoch, former.ids) == (event.epoch, event.ids), "accepted from two attempts"
        assert event.epoch == newest[event.task_id], "a stale epoch was accepted"
        assert given[event.task_id, event.epoch] == (event.worker, event.incarnation)
    consumed = [name for record in records for name in record.consumed]
    assert len(consumed) == len(set(consumed)), "consumed twice"
    assert sorted(consumed) == sorted(name for event in accepted.values() for name in event.ids)
    assert sum(state.dispositions.values()) == TASKS * NUM_SAMPLES
    assert state.dispositions["consumed"] == len(accepted) * NUM_SAMPLES
    for worker in {event.worker for event in events}:
        seen = [event.position for event in events if event.worker == worker]
        assert seen == sorted(seen), "a position fell"


def check_coverage(events: list[Event]) -> None:
    """The history holds what it is meant to judge."""
    kinds = Counter(event.kind for event in events)
    assert kinds["refused"] + kinds["fenced"] > 0
    assert kinds["accepted"] > 0


@pytest.mark.parametrize("seed", range(2))
async def test_clients_on_threads_leave_one_history(open_ledger, tmp_path, seed):
    """Each client has an event loop of its own; they share the ledger's handle, as a coordinator's do."""
    from ledger_kit import RealClock

    ledger = open_ledger(tmp_path, RealClock(), LIMITS)
    events: list[Event] = []
    learner = Learner(ledger, await opened(ledger), events)
    done = threading.Event()
    clients = [
        Client(ledger, f"actor-{n}", random.Random(100 * seed + n), events.append)
        for n in range(CLIENTS)
    ]
    threads = [
        threading.Thread(target=lambda c=client: asyncio.run(c.run(done)), daemon=True)
        for client in clients
    ]
    for thread in threads:
        thread.start()
    try:
        await asyncio.wait_for(learner.run(), SECONDS_MAX)
    finally:
        done.set()
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
    assert [client.trouble for client in clients] == [None] * CLIENTS
    await judge(ledger, events)
    check_coverage(events)
    await ledger.close()


@pytest.mark.process
async def test_clients_in_processes_leave_one_history(request, tmp_path):
    """Each process has connections of its own to the same term."""
    server = shared_server()
    from rollout.ledger.postgres.ledger import PostgresLedger

    identity = msgspec.structs.replace(IDENTITY, uid=request.node.name)
    ledger = PostgresLedger(server.dsn, identity, LIMITS)
    learner = Learner(ledger, await opened(ledger), [])
    program = Path(__file__).with_name("history_client.py")
    processes = [
        subprocess.Popen(
            [sys.executable, program, server.dsn, identity.uid, str(ledger.term), str(n)],
            stdin=subprocess.PIPE,
            stdout=(tmp_path / f"{n}.jsonl").open("wb"),
        )
        for n in range(3)
    ]
    try:
        await asyncio.wait_for(learner.run(), SECONDS_MAX)
    finally:
        for process in processes:
            process.stdin.close()
        codes = [await asyncio.to_thread(process.wait, 20) for process in processes]
    assert codes == [0, 0, 0]
    lines = [line for n in range(3) for line in (tmp_path / f"{n}.jsonl").read_text().splitlines()]
    events = [
        Event(**{**json.loads(line), "ids": tuple(json.loads(line)["ids"])}) for line in lines
    ]
    assert {asdict(event)["worker"] for event in events} == {"actor-0", "actor-1", "actor-2"}
    await judge(ledger, events)
    check_coverage(events)
    await ledger.close()

"""What episodes write is there from the step that consumed them on, and of no other sample."""

import asyncio
import sqlite3
import time
from dataclasses import replace

import msgspec
import pytest
from coordinator_kit import HELDOUT, PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.actor.turns import memory as reading
from rollout.actor.turns.memory import RunMemory
from rollout.coordinator.memory.pruning import plan_pruning
from rollout.errors import CoordinatorError, InfrastructureError
from rollout.memory import MemoryWrite
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.types import WeightVersion


class Writer(FakeActor):
    """Each sample writes who it is, and that it was there."""

    def play(self, task):
        made = super().play(task)
        if task.kind != "train":
            return made
        written = tuple(
            replace(
                one,
                memory=(
                    MemoryWrite(key="all", value=f'"{task.ordinal}/{one.sample}"'),
                    MemoryWrite(key=f"t{task.ordinal}", value=str(one.sample)),
                ),
            )
            for one in made.trajectories
        )
        return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=written)


def entries(client, lineage, step):
    """As an actor that begins reads them."""
    version = WeightVersion(lineage=lineage, step=step, digest="", object="")
    found = asyncio.run(RunMemory(client.as_worker("actor-0")).entries_of(version))
    return {key: one.value for key, one in found.items()}


def test_a_step_makes_what_it_consumed_visible_in_the_order_of_its_tasks(bench):
    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), Writer(client)
    actor.work()
    assert entries(client, 0, 0) == {}
    batch = learner.ask()
    backwards = tuple(name for group in reversed(batch.ids) for name in reversed(group))
    learner.commit(batch, consumed=backwards)
    assert entries(client, 0, 0) == {}
    assert entries(client, 0, 1) == {"t0": "1", "all": '"1/1"', "t1": "1"}


def test_a_coordinator_that_died_before_the_step_lost_nothing(bench):
    client = bench.start()
    FakeLearner(client, bench.store)
    Writer(client).work()
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    learner.commit(learner.ask())
    assert entries(client, 0, 1) == {"t0": "1", "all": '"1/1"', "t1": "1"}


def test_samples_that_no_step_consumed_write_nothing(bench):
    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), Writer(client)
    actor.work()
    batch = learner.ask()
    (kept, *dropped), rest = batch.ids[0], batch.ids[1]
    filtered = dict.fromkeys((*dropped, *rest), "length")
    learner.commit(batch, consumed=(kept,), filtered=filtered)
    assert entries(client, 0, 1) == {"all": '"0/0"', "t0": "0"}


def test_a_killed_attempt_writes_nothing(bench):
    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), Writer(client)
    tasks = actor.claim().tasks
    for task in tasks:
        actor.fail(task)
    other = FakeActor(client, 1)
    while other.work():
        pass
    learner.commit(learner.ask())
    assert entries(client, 0, 1) == {}


def test_an_evaluation_leaves_nothing_behind(bench):
    client = bench.start(changed(PLAN, evaluations=(HELDOUT,)))
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    task = next(one for one in actor.claim().tasks if one.kind == "eval")
    made = actor.play(task)
    writing = replace(made.trajectories[0], memory=(MemoryWrite(key="a", value="1"),))
    done = actor.submit(
        m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=(writing,))
    )
    assert not done.accepted[0]
    assert "an evaluation writes" in done.reasons[0]
    assert actor.submit(made).accepted[0]


@pytest.mark.parametrize("value", ["NaN", "[" * 4000, '"' + "x" * 5000 + '"', '{"b":1,"a":1}'])
def test_what_no_environment_could_have_written_is_refused_and_the_next_is_taken(bench, value):
    client = bench.start()
    FakeLearner(client, bench.store)
    actor = Writer(client)
    task = actor.claim().tasks[0]
    made = actor.play(task)
    bad = replace(made.trajectories[0], memory=(MemoryWrite(key="a", value=value),))
    done = actor.submit(
        m.TaskResult(
            task_id=task.task_id,
            epoch=task.epoch,
            trajectories=(bad, *made.trajectories[1:]),
        )
    )
    assert not done.accepted[0]
    assert "a write into memory" in done.reasons[0]
    assert actor.submit(made).accepted[0]


def test_an_actor_reads_a_version_once_and_the_next_behind_it(bench, monkeypatch):
    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), Writer(client)
    asked = []

    class Counting:
        def call(self, route, ask):
            assert route is routes.READ_MEMORY
            asked.append(ask)
            return client.as_worker("actor-0").call(route, ask)

    memory, version = RunMemory(Counting()), learner.version(0)
    for _ in range(2):
        actor.work()
        learner.commit(learner.ask())

    async def read():
        for step in (1, 1, 2, 2, 1):
            found = await memory.entries_of(replace(version, step=step))
        return found

    assert "t0" in asyncio.run(read())
    assert [(one.step, one.after[0]) for one in asked] == [(1, 0), (2, 2)]
    monkeypatch.setattr(reading, "VERSIONS_MAX", 1)
    asyncio.run(memory.entries_of(replace(version, step=3)))
    assert len(memory._known) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"lineage": -1},
        {"step": 1 << 63},
        {"after": (1 << 64 - 1, 0, 0, "")},
        {"after": (0, -5, 0, "")},
    ],
)
def test_a_place_that_no_row_can_have_is_refused_and_the_next_is_answered(bench, changes):
    client = bench.start()
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    with pytest.raises(CoordinatorError, match="expected numbers from 0"):
        actor.call(routes.READ_MEMORY, m.ReadMemory(**{"lineage": 0, "step": 0, **changes}))
    odd = m.ReadMemory(lineage=7, step=9, after=(0, 0, 0, "\0'; DROP TABLE tasks"))
    assert actor.call(routes.READ_MEMORY, odd).part.rows == ()


def test_what_was_overwritten_goes_with_bodies_and_not_while_it_is_read(bench):
    client = bench.start(changed(PLAN, steps_max=None, bodies_behind=0))
    learner, actor = FakeLearner(client, bench.store), Writer(client)
    for _ in range(3):
        actor.work()
        learner.commit(learner.ask())
    learner.anchor()
    run = bench.coordinator.run
    deadline = time.monotonic() + 60
    while not run.pruned_step:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert run.pruned_step == 3
    assert entries(client, 0, 3)["all"] == '"5/1"'
    with sqlite3.connect(bench.folder / "ledger.db") as ledger:
        assert ledger.execute("SELECT step FROM memory WHERE key = 'all'").fetchall() == [(3,)]
    with pytest.raises(InfrastructureError, match="no longer kept"):
        entries(client, 0, 2)
    actor.claim()
    name, lease = next(iter(run.state.leases.items()))
    assert plan_pruning(run) == 3
    run.state.leases[name] = msgspec.structs.replace(lease, version_step=2)
    assert plan_pruning(run) == 2
    run.state.leases[name] = msgspec.structs.replace(lease, version_lineage=1)
    assert plan_pruning(run) is None


def test_memory_is_for_the_actors_of_its_run():
    assert routes.ALLOWED["POST", routes.READ_MEMORY.path] == {"actor"}


def test_a_coordinator_that_is_away_is_no_fault_of_the_sample(bench):
    class Away:
        def call(self, route, ask):
            raise CoordinatorError("no answer")

    version = FakeLearner(bench.start(), bench.store).version(0)
    with pytest.raises(InfrastructureError, match="memory of step 0"):
        asyncio.run(RunMemory(Away()).entries_of(version))

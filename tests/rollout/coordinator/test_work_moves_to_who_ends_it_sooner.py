"""Stealing by a margin, deadlines by observed lengths, and never two results of one group."""

from __future__ import annotations

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed
from test_a_sample_goes_on_behind_its_beginning import begin, go_on, hand_back

from rollout.coordinator.plan import StragglerPlan
from rollout.coordinator.rules.lengths import KEPT_MAX, Lengths
from rollout.coordinator.rules.recall_state import MOVES_MAX
from rollout.coordinator.rules.stragglers import (
    Idle,
    WorkerLoad,
    deadline_seconds,
    plan_steals,
    seconds_here,
)
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.messages import TaskProgress

HUNDREDS = Lengths([100] * 90 + [1000] * 10)
FAST = changed(
    PLAN,
    exact=False,
    tasks_per_step=4,
    stragglers=StragglerPlan(steal_margin_seconds=1.0, deadline_factor=2.0),
)


def queued(name, samples=4, prompt=50):
    return TaskProgress(task_id=name, num_queued=samples, prompt_tokens=prompt)


def running(name, *tokens, prompt=50):
    return TaskProgress(task_id=name, running=tokens, prompt_tokens=prompt)


def steal(*tasks, margin=1.0, idle=None, pace=10.0, **more):
    idle = [Idle(worker="b")] if idle is None else idle
    load = WorkerLoad(worker="a", pace=pace, tasks=tasks)
    return plan_steals([load], idle, HUNDREDS, margin, **more)


def test_lengths_say_what_a_sample_under_way_has_to_come():
    lengths = Lengths([10, 20, 30, 40])
    assert lengths.quantile(0.5) == 20
    assert lengths.remaining(0) == 25
    assert lengths.remaining(25) == 10
    assert lengths.remaining(400) == 1.0
    assert Lengths().quantile(0.5) == 0.0


def test_only_the_newest_lengths_count():
    lengths = Lengths([5] * KEPT_MAX)
    lengths.add([7] * KEPT_MAX)
    assert (len(lengths), lengths.quantile(0.0), lengths.remaining(0)) == (KEPT_MAX, 7.0, 7.0)


def test_what_waits_for_a_place_goes_to_who_is_idle():
    moves = steal(running("t0", 10, 10), queued("t1"), queued("t2"))
    assert set(moves.values()) == {"b"}
    assert "t0" not in moves
    assert "t2" in moves


def test_a_sample_under_way_stays_where_its_tokens_are():
    assert steal(running("t0", 10), running("t1", 500)) == {}


def test_a_sample_under_way_leaves_an_actor_that_is_much_slower():
    slow = WorkerLoad(worker="a", pace=1.0, tasks=(running("t0", 10),))
    fast = Idle(worker="b", pace=20.0)
    assert plan_steals([slow], [fast], HUNDREDS, 1.0) == {"t0": "b"}
    assert plan_steals([slow], [fast], HUNDREDS, 1000.0) == {}


def test_the_prefill_of_what_there_is_counts_against_a_move():
    short, long = running("t", 10, prompt=10), running("t", 10, prompt=100_000)
    assert seconds_here(long, 10.0, HUNDREDS) - seconds_here(short, 10.0, HUNDREDS) == (
        pytest.approx((100_000 - 10) / 200.0)
    )


def test_nobody_steals_while_nothing_is_known():
    tasks = (running("t0", 10, 10), queued("t1"))
    assert (
        plan_steals(
            [WorkerLoad(worker="a", pace=10.0, tasks=tasks)], [Idle(worker="b")], Lengths(), 0.1
        )
        == {}
    )
    assert steal(*tasks, pace=0.0) == {}
    assert steal(*tasks, idle=()) == {}


def test_what_was_moved_before_is_left_alone():
    tasks = (running("t0", 10, 10), queued("t1"))
    assert "t1" in steal(*tasks)
    assert steal(*tasks, settled=frozenset({"t1"})) == {}


def test_several_idle_actors_share():
    tasks = (running("t0", 10, 10), *(queued(f"t{n}") for n in range(1, 9)))
    moves = steal(*tasks, idle=(Idle(worker="b"), Idle(worker="c")))
    counts = [list(moves.values()).count(name) for name in "bc"]
    assert min(counts) >= 2
    assert max(counts) - min(counts) <= 1


def test_a_deadline_is_a_multiple_of_the_longest_samples_time():
    assert deadline_seconds(10.0, HUNDREDS, 2.0) == pytest.approx(200.0)
    assert deadline_seconds(0.0, HUNDREDS, 2.0) is None
    assert deadline_seconds(10.0, Lengths([5]), 2.0) is None


@pytest.fixture
def start(bench):
    """A run with two actors; the first holds all four groups, at 10 tokens a second."""

    def started(plan=FAST, lengths=HUNDREDS):
        client = bench.start(plan)
        run = bench.coordinator.run
        bench.hold_clock()
        FakeLearner(client, bench.store)
        slow, other = FakeActor(client), FakeActor(client, index=1)
        tasks = ()
        while len(tasks) < 4:
            tasks += slow.claim(tasks_max=4, held=tuple(task.task_id for task in tasks)).tasks
        run.recalls.lengths = lengths
        return run, slow, other, tasks

    return started


def beat(actor, tasks, progress, pace=10.0):
    ask = m.Heartbeat(
        task_ids=tuple(task.task_id for task in tasks),
        progress=progress,
        tokens_per_second=pace,
    )
    return actor.call(routes.ACTOR_HEARTBEAT, ask).give_back


def test_an_idle_actor_is_given_what_waits_and_the_old_attempt_is_over(start):
    run, slow, other, tasks = start()
    run.waits.idle[other.name] = run.clock()
    progress = (running("t/0", 10, 10), *(queued(task.task_id, 2) for task in tasks[1:]))

    asked = beat(slow, tasks, progress)

    assert len(asked) >= 1
    assert "t/0" not in asked
    wanted = next(task for task in tasks if task.task_id == asked[0])
    late = slow.play(wanted)
    assert hand_back(slow, wanted).accepted == (True,)
    again = other.claim(tasks_max=1).tasks[0]
    assert (again.task_id, again.epoch) == (wanted.task_id, wanted.epoch + 1)
    assert slow.submit(late).accepted == (False,)
    assert other.submit(other.play(again)).accepted == (True,)
    assert slow.submit(late).accepted == (False,)


def test_a_result_that_was_on_its_way_counts_and_nothing_is_moved(start):
    run, slow, other, tasks = start()
    run.waits.idle[other.name] = run.clock()
    progress = (running("t/0", 10, 10), *(queued(task.task_id, 2) for task in tasks[1:]))
    asked = beat(slow, tasks, progress)
    wanted = next(task for task in tasks if task.task_id == asked[0])
    assert slow.submit(slow.play(wanted)).accepted == (True,)
    assert wanted.task_id not in beat(slow, tasks, progress)
    assert hand_back(slow, wanted).accepted == (False,)
    assert other.claim().tasks == ()


def test_while_there_is_open_work_nobody_steals(start):
    run, slow, other, tasks = start()
    hand_back(slow, tasks[3])
    run.waits.idle[other.name] = run.clock()
    progress = (running("t/0", 10, 10), *(queued(task.task_id, 2) for task in tasks[1:3]))
    assert beat(slow, tasks, progress) == ()


def test_in_exact_nothing_moves(start):
    run, slow, other, tasks = start(changed(FAST, exact=True, stragglers=None))
    run.waits.idle[other.name] = run.clock()
    progress = (running("t/0", 10, 10), *(queued(task.task_id, 2) for task in tasks[1:]))
    assert beat(slow, tasks, progress) == ()


def test_past_its_deadline_a_group_is_asked_back_and_gone_on_with(start):
    run, slow, other, tasks = start()
    progress = tuple(running(task.task_id, 900, 900) for task in tasks)
    assert beat(slow, tasks, progress) == ()
    for _ in range(50):
        run.clock.now += 4.0
        beat(other, (), ())
        assert beat(slow, tasks, progress) == ()
    run.clock.now += 4.0
    beat(other, (), ())
    assert beat(slow, tasks, progress) == tuple(task.task_id for task in tasks)

    hand_back(slow, tasks[0], begin(tasks[0]))
    again = other.claim(tasks_max=1).tasks[0]
    assert again.prefixes == (begin(tasks[0]),)
    assert other.submit(go_on(again)).accepted == (True,)
    assert run.recalls.told["deadline"] == 4


def test_who_does_not_return_what_is_overdue_loses_it(start):
    run, slow, other, tasks = start()
    progress = tuple(running(task.task_id, 900, 900) for task in tasks)
    beat(slow, tasks, progress)
    run.clock.now += 300.0
    beat(other, (), ())
    assert beat(slow, tasks, progress)
    late = slow.play(tasks[0])
    run.clock.now += FAST.lease_seconds + 1
    beat(other, (), ())
    again = other.claim(tasks_max=1).tasks[0]
    assert (again.task_id, again.epoch) == ("t/0", 2)
    assert slow.submit(late).accepted == (False,)
    assert run.recalls.told["taken"] == 4
    assert other.submit(other.play(again)).accepted == (True,)


def test_a_group_is_moved_a_bounded_number_of_times(start):
    run, slow, other, tasks = start()
    run.recalls.times["t/0"] = MOVES_MAX
    progress = tuple(running(task.task_id, 900, 900) for task in tasks)
    beat(slow, tasks, progress)
    run.clock.now += 300.0
    beat(other, (), ())
    assert "t/0" not in beat(slow, tasks, progress)


def test_alone_an_actor_keeps_what_it_has(start):
    run, slow, _, tasks = start()
    progress = tuple(running(task.task_id, 900, 900) for task in tasks)
    beat(slow, tasks, progress)
    run.clock.now += 300.0
    assert beat(slow, tasks, progress) == ()

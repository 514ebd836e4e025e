"""What an actor hands back is handed on, as long as it is young enough; what comes of it is checked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, make_trajectory
from plans import changed

from rollout.coordinator.calls.partial import choose_young
from rollout.ledger.records import NewTask
from rollout.protocol import messages as m
from rollout.types import Prefix, VersionSpan

FAST = changed(PLAN, exact=False, staleness_max=1, steps_max=6)


def begin(task: m.Task, sample: int = 0, *token_ids: int) -> Prefix:
    """A beginning by the task's own version."""
    token_ids = token_ids or (5, 9)
    version = task.version
    return Prefix(
        sample=sample,
        segment=1,
        prompt_ids=(1, 2, 3),
        token_ids=token_ids,
        logprobs=(-0.1,) * len(token_ids),
        loss_mask=(1,) * len(token_ids),
        spans=(
            VersionSpan(start=0, end=len(token_ids), lineage=version.lineage, step=version.step),
        ),
    )


def hand_back(actor: FakeActor, task: m.Task, *prefixes: Prefix) -> m.Submitted:
    failure = m.Failure(kind="returned", message="leaving")
    return actor.submit(
        m.TaskResult(task_id=task.task_id, epoch=task.epoch, failure=failure, prefixes=prefixes)
    )


def go_on(task: m.Task, **changes) -> m.TaskResult:
    """A result whose samples go on behind the prefixes that the task brought."""
    made = []
    for sample in range(task.num_samples):
        one = make_trajectory(task, sample, float(sample % 2))
        for prefix in task.prefixes:
            if prefix.sample == sample:
                start = len(prefix.token_ids)
                rest = replace(one.spans[0], start=start, end=start + 2)
                one = replace(
                    one,
                    token_ids=prefix.token_ids + one.token_ids,
                    actor_logprobs=prefix.logprobs + one.actor_logprobs,
                    loss_mask=prefix.loss_mask + one.loss_mask,
                    spans=(*prefix.spans, rest),
                )
                one = replace(one, **changes)
        made.append(one)
    return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=tuple(made))


@pytest.fixture
def start(bench):
    def started(plan=FAST):
        client = bench.start(plan)
        return client, FakeLearner(client, bench.store), FakeActor(client)

    return started


def test_the_next_attempt_is_given_what_the_last_one_had(start):
    client, _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    prefix = begin(task, 1)
    assert hand_back(actor, task, prefix).accepted == (True,)

    other = FakeActor(client, index=1)
    again = other.claim(tasks_max=1).tasks[0]

    assert (again.task_id, again.epoch, again.attempt) == (task.task_id, 2, 1)
    assert again.prefixes == (prefix,)
    assert other.submit(go_on(again)).accepted == (True,)


def test_beginnings_survive_a_coordinator(start, bench):
    _, _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    hand_back(actor, task, begin(task))
    client = bench.start(FAST)
    again = FakeActor(client, index=1).claim(tasks_max=1).tasks[0]
    assert again.prefixes == (begin(task),)


def test_in_exact_samples_start_over(start):
    _, _, actor = start(changed(PLAN, exact=True))
    task = actor.claim(tasks_max=1).tasks[0]
    assert hand_back(actor, task, begin(task)).accepted == (True,)
    assert actor.claim(tasks_max=1).tasks[0].prefixes == ()


def test_a_group_may_hold_tokens_of_several_versions_within_the_bound(start):
    _, learner, actor = start()
    tasks = actor.claim(tasks_max=4).tasks
    assert all(actor.submit(*map(actor.play, tasks[:3])).accepted)
    hand_back(actor, tasks[3], begin(tasks[3]))
    learner.commit(learner.ask())

    again = actor.claim(tasks_max=1).tasks[0]
    assert (again.ordinal, again.version.step, again.prefixes) == (3, 1, (begin(tasks[3]),))
    assert actor.submit(go_on(again)).accepted == (True,)
    consumed = learner.ask().groups[1].trajectories[0]
    assert [(span.start, span.end, span.step) for span in consumed.spans] == [(0, 2, 0), (2, 4, 1)]
    assert len(consumed.token_ids) == len(consumed.actor_logprobs) == 4


@pytest.mark.parametrize(
    ("ordinal", "step", "kept"),
    [(10, 4, True), (10, 3, False), (11, 4, True), (12, 5, True), (12, 4, False)],
)
def test_a_beginning_that_would_be_too_old_when_it_is_consumed_is_left(ordinal, step, kept):
    """Step 5 is committed, groups below 10 are taken, a step takes two: 12 is consumed by step 7."""
    state = SimpleNamespace(step=5, cursor=m.Cursor(next_ordinal=10))
    run = SimpleNamespace(state=state, plan=FAST)
    task = NewTask(task_id=f"t/{ordinal}", kind="train", ordinal=ordinal, num_samples=1)
    prefix = Prefix(
        sample=0,
        segment=1,
        prompt_ids=(1,),
        token_ids=(2, 3),
        logprobs=(-0.1, -0.1),
        loss_mask=(1, 1),
        spans=(
            VersionSpan(start=0, end=1, lineage=0, step=step),
            VersionSpan(start=1, end=2, lineage=0, step=5),
        ),
    )
    found = choose_young(run, SimpleNamespace(task=task), {0: prefix})
    assert found == ((prefix,) if kept else ())


def test_what_comes_back_must_go_on_from_what_was_given_or_start_over(start):
    _, _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    hand_back(actor, task, begin(task))
    again = actor.claim(tasks_max=1).tasks[0]

    other = VersionSpan(start=0, end=2, lineage=0, step=9)
    refused = actor.submit(go_on(again, spans=(other,)))
    assert refused.accepted == (False,)
    assert "sampled from version (0, 9)" in refused.reasons[0]
    refused = actor.submit(go_on(again, actor_logprobs=(-3.0, -3.0, -0.1, -0.2)))
    assert "other logprobs than its beginning" in refused.reasons[0]
    assert actor.submit(actor.play(again)).accepted == (True,), "it may start over"


def test_beginnings_are_checked_when_they_are_handed_back(start):
    _, _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    good = begin(task)
    bad = {
        "differ in length": replace(good, logprobs=(-0.1,)),
        "sampled from version": replace(good, spans=(replace(good.spans[0], step=7),)),
    }
    for reason, prefix in bad.items():
        assert reason in hand_back(actor, task, prefix).reasons[0]
    assert "in order" in hand_back(actor, task, good, good).reasons[0]
    assert hand_back(actor, task, good).accepted == (True,)
    again = actor.claim(tasks_max=1).tasks[0]
    longer = replace(good, token_ids=(5, 9, 7), logprobs=(-0.1,) * 3, loss_mask=(1,) * 3)
    assert hand_back(actor, again, longer).accepted == (True,)


def test_only_the_holder_of_the_lease_may_leave_beginnings(start):
    client, _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    hand_back(actor, task, begin(task))
    other = FakeActor(client, index=1)
    again = other.claim(tasks_max=1).tasks[0]
    assert hand_back(actor, task, begin(task, 0, 8, 8)).accepted == (True,), "repeats what it said"
    assert other.submit(go_on(again)).accepted == (True,)
    assert not hand_back(other, again, begin(again)).accepted[0]

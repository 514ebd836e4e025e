"""An episode of several rows is one sample: kept whole or refused by name, before anything is kept of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, make_trajectory
from plans import changed

from rollout.codec import name_trajectory
from rollout.coordinator.plan import InferPlan
from rollout.coordinator.rules.branches import check_branches
from rollout.coordinator.state import find_oldest_step
from rollout.ledger.records import NewTask
from rollout.protocol import messages as m
from rollout.turns import ROWS_MAX
from rollout.types import Branch, ExpertRoutes, VersionSpan, WeightVersion

BRANCHED = changed(PLAN, branches=True)
ANSWERS = InferPlan(num_rows=9, num_refused=0, failed_ratio_max=0.0)
VERSION = WeightVersion(lineage=0, step=0, digest="", object="")


def branch(task: m.Task, **changes) -> Branch:
    version = task.version
    span = VersionSpan(start=1, end=3, lineage=version.lineage, step=version.step)
    row = Branch(
        prompt_ids=(4, 5),
        token_ids=(6, 7, 8),
        actor_logprobs=(0.0, -0.5, -0.25),
        loss_mask=(0, 1, 1),
        spans=(span,),
    )
    return replace(row, **changes)


def result(task: m.Task, *branches: Branch) -> m.TaskResult:
    """The first sample has these rows besides."""
    made = [make_trajectory(task, sample, float(sample)) for sample in range(task.num_samples)]
    made[0] = replace(made[0], branches=branches)
    return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=tuple(made))


@pytest.fixture
def start(bench):
    def started(plan=BRANCHED):
        client = bench.start(plan)
        return FakeLearner(client, bench.store), FakeActor(client)

    return started


def test_it_is_one_sample_in_the_ledger_the_batch_and_the_books(start, bench):
    learner, actor = start()
    tasks = actor.claim(tasks_max=2).tasks
    sent = [result(task, branch(task), branch(task, token_ids=(9, 9, 9))) for task in tasks]
    assert all(actor.submit(*sent).accepted)

    batch = learner.ask()
    assert [group.trajectories for group in batch.groups] == [one.trajectories for one in sent]
    made = [one for group in batch.groups for one in group.trajectories]
    names = [name_trajectory(one) for one in made]
    assert [name for ids in batch.ids for name in ids] == names
    learner.commit(batch)
    with bench.reader() as ledger:
        views = list(ledger.samples(1))
        assert [view.trajectory for view in views] == made
        assert [view.num_tokens for view in views] == [one.num_tokens for one in made]
        assert ledger.dispositions() == {"consumed": 4, "pending": 4}


def test_a_coordinator_that_died_in_between_gives_the_same_batch(start, bench):
    learner, actor = start()
    tasks = actor.claim(tasks_max=2).tasks
    assert all(actor.submit(*(result(task, branch(task)) for task in tasks)).accepted)
    before = learner.ask()

    learner = FakeLearner(bench.start(BRANCHED), bench.store)
    after = learner.ask()
    assert (after.ids, after.groups) == (before.ids, before.groups)


def test_a_result_that_is_sent_twice_is_there_once(start, bench):
    learner, actor = start()
    tasks = actor.claim(tasks_max=2).tasks
    sent = [result(task, branch(task)) for task in tasks]
    assert all(actor.submit(*sent).accepted)
    actor.submit(*sent)
    learner.commit(learner.ask())
    with bench.reader() as ledger:
        assert ledger.dispositions() == {"consumed": 4, "pending": 4}


OLD = VersionSpan(start=1, end=3, lineage=0, step=9)
EXPERTS = ExpertRoutes(num_layers=1, top_k=1, wide=False, chosen=b"\0\0\0\0")


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"token_ids": (6, 7)}, "branch 0: tokens, logprobs and mask differ in length"),
        ({"loss_mask": (0, 0, 0)}, "branch 0: nothing of it was sampled"),
        ({"prompt_ids": ()}, "branch 0: no prompt"),
        ({"prompt_ids": (-1,)}, "prompt_ids hold what is no token id"),
        ({"token_ids": (1, 2, 1 << 40)}, "token_ids hold what is no token id"),
        ({"actor_logprobs": (0.0, float("nan"), 0.0)}, "actor_logprobs[1] is nan"),
        ({"loss_mask": (0, 2, 1)}, "loss_mask holds other numbers"),
        ({"spans": (replace(OLD, start=-1),)}, "spans are out of range"),
        ({"spans": (OLD,)}, "sampled from version (0, 9), task wants (0, 0)"),
        ({"routes": EXPERTS}, "it tells experts: expected none"),
    ],
)
def test_a_row_that_cannot_be_trained_on_is_refused_by_what_is_wrong_with_it(start, changes, wrong):
    _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    answer = actor.submit(result(task, branch(task, **changes)))
    assert answer.accepted == (False,)
    assert answer.reasons[0].startswith("sample 0: ")
    assert wrong in answer.reasons[0]
    assert actor.submit(result(task, branch(task))).accepted == (True,)


def test_rows_are_bounded_whatever_an_actor_says(start):
    _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    answer = actor.submit(result(task, *[branch(task)] * ROWS_MAX))
    assert answer.reasons == (f"sample 0: {ROWS_MAX + 1} rows: expected at most {ROWS_MAX}",)
    assert actor.submit(result(task)).reasons == (
        "sample 0: branches are empty: expected them left out",
    )
    assert actor.submit(result(task, *[branch(task)] * (ROWS_MAX - 1))).accepted == (True,)


def test_an_algorithm_that_learns_from_one_row_refuses_several_by_name(start):
    _, actor = start(PLAN)
    task = actor.claim(tasks_max=1).tasks[0]
    answer = actor.submit(result(task, branch(task)))
    assert answer.accepted == (False,)
    assert "the algorithm of this run learns from one" in answer.reasons[0]
    assert actor.submit(actor.play(task)).accepted == (True,)


@pytest.mark.parametrize(
    ("kind", "plan", "wrong"),
    [
        ("train", PLAN, "learns from one"),
        ("train", BRANCHED, ""),
        ("eval", PLAN, ""),
        ("eval", replace(PLAN, infer=ANSWERS), "an inference run answers a row of its data once"),
    ],
)
def test_several_rows_are_taken_where_they_are_trained_on_or_measured(kind, plan, wrong):
    task = NewTask(task_id="t/0", kind=kind, ordinal=0, num_samples=1)
    lent = SimpleNamespace(version=VERSION, ordinal=0, row={"prompt": ""})
    made = replace(make_trajectory(lent, 0, 1.0), branches=(branch(lent),))
    found = check_branches(made, task, plan)
    assert wrong in found if wrong else found == ""


def test_the_oldest_token_of_any_row_says_how_old_a_group_is(start):
    _, actor = start()
    task = actor.claim(tasks_max=1).tasks[0]
    made = result(task, branch(task, spans=(replace(OLD, step=-3),))).trajectories
    assert find_oldest_step(made) == -3

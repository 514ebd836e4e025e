"""A run goes back to one of its own steps: a new lineage, the queue as it was then, and nobody of before is heard."""

import dataclasses

import msgspec
import pytest
from ledger_kit import (
    Clock,
    admission,
    claim_request,
    ended,
    finished,
    started,
    step_commit,
    trajectory,
    version,
)
from test_bodies_go_when_nothing_needs_them import GROUPS, ordinals

from rollout.errors import Fenced, LedgerError
from rollout.ledger.records import AnchorManifest, Limits, NewEvaluation, NewTask
from rollout.types import Branch, VersionSpan


def anchor(step, lineage=0, **changes):
    made = AnchorManifest(
        name=f"step-{step:06d}",
        lineage=lineage,
        step=step,
        chain=f"chain-{lineage}-{step}",
        version=version(step, lineage),
        objects={},
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
async def ledger(open_ledger, tmp_path):
    made = open_ledger(tmp_path, Clock(), Limits())
    yield made
    await made.close()


async def steps(ledger, learner, actor, first, last, lineage=0):
    for step in range(first, last + 1):
        await ledger.admit(admission(ordinals(step).start, ordinals(step).stop))
        ask = claim_request("actor-0", actor, step=step - 1, lineage=lineage)
        leases = (await ledger.claim(ask)).leases
        await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
        await ledger.commit(step_commit(step, ordinals(step), learner, lineage=lineage))


async def back(ledger):
    learner = (await ledger.register("learner", "learner")).incarnation
    return learner, (await ledger.register("actor-0", "actor")).incarnation


async def test_its_head_is_that_step_and_later_samples_are_asked_for_again(ledger):
    learner, actor = await started(ledger, 0)
    await steps(ledger, learner, actor, 1, 4)

    assert await ledger.go_back(anchor(2), "from a snapshot") == 1
    state = await ledger.load()

    assert (state.lineage, state.head.step, state.head.chain) == (1, 2, "chain-0-2")
    assert state.anchors[-1] == anchor(2)
    assert [(group.task.ordinal, group.state) for group in state.groups] == [
        *((ordinal, "done") for ordinal in ordinals(3)),  # sampled from version 2
        *((ordinal, "open") for ordinal in ordinals(4)),
    ]
    assert all(group.body is None for group in state.groups if group.state == "open")
    learner, actor = await back(ledger)
    await ledger.commit(step_commit(3, ordinals(3), learner, lineage=1))
    await steps(ledger, learner, actor, 4, 5, lineage=1)
    assert (await ledger.load()).head.step == 5
    assert [one.lineage for one in await ledger.records_after(0)] == [0, 0, 1, 1, 1]


async def test_a_sample_with_a_row_of_a_later_version_is_asked_for_again(ledger):
    learner, actor = await started(ledger, 0)
    await steps(ledger, learner, actor, 1, 3)
    await ledger.admit(admission(ordinals(4).start, ordinals(4).stop))
    leases = (await ledger.claim(claim_request("actor-0", actor, step=3))).leases
    ordinal = ordinals(4).start
    first, other = (trajectory(ordinal, sample, step=2) for sample in range(2))
    later = Branch(
        prompt_ids=(9,),
        token_ids=(3,),
        actor_logprobs=(-0.5,),
        loss_mask=(1,),
        spans=(VersionSpan(start=0, end=1, lineage=0, step=3),),
    )
    made = [dataclasses.replace(first, branches=(later,)), other]
    [lease] = [one for one in leases if one.task.ordinal == ordinal]
    await ledger.submit("actor-0", actor, [ended(lease, made)])

    await ledger.go_back(anchor(2), "from a snapshot")

    states = {one.task.ordinal: one.state for one in (await ledger.load()).groups}
    assert states[ordinal] == "open"


async def test_a_step_that_counts_no_more_can_be_gone_back_to(ledger):
    learner, actor = await started(ledger, 0)
    await steps(ledger, learner, actor, 1, 4)
    await ledger.go_back(anchor(1), "from a snapshot")
    await steps(ledger, *await back(ledger), 2, 2, lineage=1)

    assert await ledger.go_back(anchor(4), "from a later one") == 2
    state = await ledger.load()
    assert (state.lineage, state.head.step) == (2, 4)
    assert [one.lineage for one in await ledger.records_after(0)] == [0, 0, 0, 0]


async def test_processes_of_before_are_fenced_and_change_nothing(ledger):
    learner, actor = await started(ledger, 0)
    await steps(ledger, learner, actor, 1, 2)
    await ledger.admit(admission(ordinals(3).start, ordinals(3).stop))
    leases = (await ledger.claim(claim_request("actor-0", actor, step=2))).leases
    await ledger.go_back(anchor(1), "from a snapshot")
    before = await ledger.load()
    for late in (
        ledger.submit("actor-0", actor, [finished(one) for one in leases]),
        ledger.commit(step_commit(3, ordinals(3), learner)),
        ledger.save_anchor(learner, anchor(2)),
    ):
        with pytest.raises((Fenced, LedgerError)):
            await late
    assert await ledger.load() == before
    assert GROUPS


@pytest.mark.parametrize(
    "wrong",
    [
        anchor(2, chain="chain-of-another-run"),
        anchor(2, version=version(2, salt="x")),
        anchor(7),
        anchor(2, lineage=3),
        anchor(-1),
    ],
)
async def test_a_step_that_is_not_its_own_changes_nothing(ledger, wrong):
    learner, actor = await started(ledger, 0)
    await steps(ledger, learner, actor, 1, 3)
    before, position = await ledger.load(), ledger.position
    with pytest.raises(LedgerError, match="no step of this run's own past"):
        await ledger.go_back(wrong, "from a snapshot")
    assert await ledger.load() == before
    assert ledger.position == position


async def test_evaluations_of_what_counts_no_more_are_waited_for_by_nobody(ledger):
    learner, actor = await started(ledger, 0)
    await steps(ledger, learner, actor, 1, 3)

    def evaluation(step):
        task = NewTask(
            task_id=f"e/held/report/0-{step}/0",
            kind="eval",
            ordinal=0,
            num_samples=1,
            evaluation="held",
            split="report",
            lineage=0,
            step=step,
        )
        return NewEvaluation(name="held", split="report", lineage=0, step=step, tasks=(task,))

    await ledger.admit(admission(6, 6, evaluations=(evaluation(1), evaluation(3))))
    await ledger.go_back(anchor(2), "from a snapshot")
    found = {one.step: one.summary for one in (await ledger.load()).evaluations}
    assert found == {1: None, 3: {"dropped": True}}

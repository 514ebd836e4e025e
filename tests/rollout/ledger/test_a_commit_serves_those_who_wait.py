"""What a commit lets in is leased in its own transaction to the actors that wait: all of it, or nothing with the commit."""

import pytest
from ledger_kit import (
    Clock,
    admission,
    claim_request,
    finished,
    started,
    step_commit,
)
from msgspec import structs

from rollout.errors import LedgerError
from rollout.ledger.records import Limits


@pytest.fixture
async def ledger(open_ledger, tmp_path):
    made = open_ledger(tmp_path, Clock(), Limits())
    yield made
    await made.close()


async def one_step(ledger, *claims):
    """The commit of the first step, which lets two tasks in; its tasks are done."""
    _, actor = await started(ledger, 2)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    commit = step_commit(1, range(2))
    entered = admission(2, 4)
    return actor, structs.replace(commit, admission=entered, claims=claims)


def named(claims):
    return [[lease.task.task_id for lease in one.leases] if one else None for one in claims]


async def test_each_gets_its_part_of_what_has_entered_in_turn(ledger):
    other = (await ledger.register("actor-1", "actor")).incarnation
    actor, commit = await one_step(ledger)
    asks = (
        claim_request("actor-0", actor, tasks_max=1, step=1),
        claim_request("actor-1", other, tasks_max=1, step=1),
        claim_request("actor-1", other, tasks_max=1, step=1, held=("t/3",)),
    )
    claims = await ledger.commit(structs.replace(commit, claims=asks))
    assert named(claims) == [["t/2"], ["t/3"], []]
    assert [one.leases[0].version_step for one in claims[:2]] == [1, 1]
    verdicts = await ledger.submit("actor-1", other, [finished(claims[1].leases[0])])
    assert [one.accepted for one in verdicts] == [True]


async def test_one_that_was_replaced_meanwhile_gets_nothing_and_the_commit_stands(ledger):
    actor, commit = await one_step(ledger)
    await ledger.register("actor-0", "actor")
    stranger = claim_request("actor-9", 1, step=1)
    asks = (claim_request("actor-0", actor, step=1), stranger)
    assert await ledger.commit(structs.replace(commit, claims=asks)) == (None, None)
    state = await ledger.load()
    assert state.head.step == 1
    assert [group.state for group in state.groups] == ["open", "open"]


async def test_what_its_worker_never_heard_of_is_handed_out_again(ledger):
    actor, commit = await one_step(ledger)
    asks = (claim_request("actor-0", actor, step=1),)
    lost = await ledger.commit(structs.replace(commit, claims=asks))
    again = await ledger.claim(claim_request("actor-0", actor, step=1))
    assert [(one.task.task_id, one.epoch) for one in again.leases] == [
        (one.task.task_id, one.epoch) for one in lost[0].leases
    ]


async def test_a_commit_that_is_refused_leases_nothing(ledger):
    actor, commit = await one_step(ledger)
    asks = (claim_request("actor-0", actor, step=1),)
    with pytest.raises(LedgerError):
        await ledger.commit(structs.replace(commit, step=5, claims=asks))
    assert (await ledger.load()).head is None
    assert [group.state for group in (await ledger.load()).groups] == ["done", "done"]

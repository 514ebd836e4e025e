import pytest
from ledger_kit import (
    TERM,
    Clock,
    admission,
    claim_request,
    failed,
    finished,
    started,
)
from msgspec import structs

from rollout.errors import Fenced
from rollout.ledger.records import Limits

LIMITS = Limits(failures_max=2, losses_max=3)


@pytest.fixture
async def ledger(open_ledger, tmp_path, clock):
    made = open_ledger(tmp_path, clock, LIMITS)
    yield made
    await made.close()


@pytest.fixture
def clock():
    return Clock()


async def test_tasks_are_claimed_once_and_in_data_order(ledger):
    _, actor = await started(ledger)
    first = (await ledger.claim(claim_request("actor-0", actor, tasks_max=3))).leases
    other = (await ledger.register("actor-1", "actor")).incarnation
    second = (await ledger.claim(claim_request("actor-1", other))).leases
    assert [lease.task.ordinal for lease in first] == [0, 1, 2]
    assert [lease.task.ordinal for lease in second] == [3]
    assert [lease.epoch for lease in first] == [1, 1, 1]


async def test_a_task_that_entered_after_the_version_asked_for_waits_for_a_younger_one(ledger):
    """A commit may come between what a claim was made from and its transaction."""
    _, actor = await started(ledger)
    claims = await ledger.claim(claim_request("actor-0", actor, ordinal_end=3))
    held = tuple(lease.task.task_id for lease in claims.leases)
    younger = await ledger.claim(claim_request("actor-0", actor, held=held, step=1))
    assert [(x.task.ordinal, x.version_step) for x in claims.leases] == [(0, 0), (1, 0), (2, 0)]
    assert [(x.task.ordinal, x.version_step) for x in younger.leases] == [(3, 1)]


async def test_a_task_that_was_given_up_is_neither_claimed_nor_given_a_result(ledger):
    _, actor = await started(ledger)
    late, done = (await ledger.claim(claim_request("actor-0", actor, tasks_max=2))).leases
    await ledger.submit("actor-0", actor, [finished(done)])
    given_up = await ledger.expire([late.task.task_id, done.task.task_id, "t/3", "t/99"])
    assert sorted(given_up) == [late.task.task_id, "t/3"]
    verdict = (await ledger.submit("actor-0", actor, [finished(late)]))[0]
    assert (verdict.accepted, verdict.state) == (False, "expired")
    assert await ledger.renew("actor-0", actor, [late.task.task_id], TERM) == (late.task.task_id,)
    again = (await ledger.claim(claim_request("actor-0", actor))).leases
    assert [lease.task.ordinal for lease in again] == [2]
    states = {one.task.task_id: one.state for one in (await ledger.load()).groups}
    assert [states[f"t/{n}"] for n in range(4)] == ["expired", "done", "leased", "expired"]


async def test_a_claim_whose_answer_was_lost_gets_the_same_leases_again(ledger):
    _, actor = await started(ledger)
    first = (await ledger.claim(claim_request("actor-0", actor, tasks_max=2))).leases
    again = (await ledger.claim(claim_request("actor-0", actor, tasks_max=2))).leases
    assert [(x.task, x.epoch) for x in again] == [(x.task, x.epoch) for x in first]
    held = tuple(lease.task.task_id for lease in first)
    more = (await ledger.claim(claim_request("actor-0", actor, tasks_max=2, held=held))).leases
    assert [lease.task.ordinal for lease in more] == [2, 3]


async def test_a_silent_workers_task_goes_to_another_and_its_late_result_is_refused(ledger, clock):
    _, slow = await started(ledger, 1)
    old = (await ledger.claim(claim_request("actor-0", slow))).leases[0]
    clock.now += TERM + 1
    fast = (await ledger.register("actor-1", "actor")).incarnation
    new = (await ledger.claim(claim_request("actor-1", fast))).leases[0]
    assert (new.epoch, new.attempt) == (old.epoch + 1, 2)

    late = (await ledger.submit("actor-0", slow, [finished(old)]))[0]
    assert not late.accepted
    assert (await ledger.submit("actor-1", fast, [finished(new)]))[0].accepted
    assert await ledger.renew("actor-0", slow, ["t/0"], TERM) == ("t/0",)


async def test_a_late_result_is_welcome_while_nobody_else_has_the_task(ledger, clock):
    _, actor = await started(ledger, 1)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    clock.now += 10 * TERM
    assert (await ledger.submit("actor-0", actor, [finished(lease)]))[0].accepted


async def test_a_heartbeat_keeps_a_lease_alive(ledger, clock):
    _, actor = await started(ledger, 1)
    await ledger.claim(claim_request("actor-0", actor))
    other = (await ledger.register("actor-1", "actor")).incarnation
    for _ in range(3):
        clock.now += TERM * 0.9
        assert await ledger.renew("actor-0", actor, ["t/0"], TERM) == ()
    assert (await ledger.claim(claim_request("actor-1", other))).leases == ()


async def test_a_restarted_worker_frees_its_tasks_at_once_and_fences_its_former_self(ledger):
    _, old = await started(ledger, 1)
    lease = (await ledger.claim(claim_request("actor-0", old))).leases[0]
    new = (await ledger.register("actor-0", "actor")).incarnation
    with pytest.raises(Fenced):
        await ledger.submit("actor-0", old, [finished(lease)])
    with pytest.raises(Fenced):
        await ledger.claim(claim_request("actor-0", old))
    again = (await ledger.claim(claim_request("actor-0", new))).leases[0]
    assert again.epoch == lease.epoch + 1


async def test_submitting_twice_is_the_same_as_once(ledger):
    _, actor = await started(ledger, 1)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    end = finished(lease)
    first = await ledger.submit("actor-0", actor, [end])
    position = ledger.position
    again = await ledger.submit("actor-0", actor, [end])
    assert first[0].accepted
    assert again[0].accepted
    assert ledger.position == position


async def test_a_repeated_failure_counts_once(ledger):
    _, actor = await started(ledger, 1)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    for _ in range(3):
        verdict = (await ledger.submit("actor-0", actor, [failed(lease)]))[0]
        assert (verdict.accepted, verdict.state) == (True, "open")


async def test_infrastructure_failures_are_bounded_and_then_exclude(ledger):
    _, actor = await started(ledger, 1)
    states = []
    for _ in range(LIMITS.failures_max):
        lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
        states.append((await ledger.submit("actor-0", actor, [failed(lease)]))[0].state)
    assert states == ["open", "excluded"]
    assert (await ledger.claim(claim_request("actor-0", actor))).leases == ()


async def test_a_task_that_kills_every_worker_is_excluded_in_the_end(ledger):
    _, actor = await started(ledger, 1)
    for _ in range(LIMITS.losses_max):
        assert len((await ledger.claim(claim_request("actor-0", actor))).leases) == 1
        actor = (await ledger.register("actor-0", "actor")).incarnation
    assert (await ledger.claim(claim_request("actor-0", actor))).leases == ()
    assert (await ledger.load()).groups[0].state == "excluded"


async def test_work_handed_back_is_not_held_against_the_task(ledger):
    _, actor = await started(ledger, 1)
    for _ in range(5):
        lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
        assert lease.attempt == 1
        await ledger.submit("actor-0", actor, [failed(lease, "returned")])


async def test_a_starting_coordinator_rearms_every_lease_for_one_term(ledger, clock):
    _, actor = await started(ledger, 1)
    await ledger.claim(claim_request("actor-0", actor))
    clock.now += 10 * TERM
    assert await ledger.rearm(TERM) == 1
    other = (await ledger.register("actor-1", "actor")).incarnation
    clock.now += TERM / 2
    assert (await ledger.claim(claim_request("actor-1", other))).leases == ()
    clock.now += TERM
    assert len((await ledger.claim(claim_request("actor-1", other))).leases) == 1


@pytest.mark.parametrize("count", [0, 3])
async def test_a_result_with_no_samples_or_too_many_leaves_nothing_behind(ledger, count):
    _, actor = await started(ledger, 1)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    whole = finished(lease)
    wrong = structs.replace(whole, samples=(*whole.samples, whole.samples[0])[:count])
    verdict = (await ledger.submit("actor-0", actor, [wrong]))[0]
    assert (verdict.accepted, verdict.reason) == (False, f"t/0 wants 2 samples, got {count}")
    assert (await ledger.submit("actor-0", actor, [whole]))[0].accepted


async def test_a_group_may_come_back_without_the_samples_that_infrastructure_took(ledger):
    _, actor = await started(ledger, 1)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    survivors = structs.replace(finished(lease), samples=finished(lease).samples[1:])
    assert (await ledger.submit("actor-0", actor, [survivors]))[0].accepted
    group = (await ledger.load()).groups[0]
    assert [sample.sample for sample in group.samples] == [1]


async def test_admitting_again_changes_nothing(ledger):
    _, actor = await started(ledger, 2)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    await ledger.submit("actor-0", actor, [finished(lease)])
    await ledger.admit(admission(0, 2))
    states = [group.state for group in (await ledger.load()).groups]
    assert states == ["done", "leased"]


async def test_a_claim_that_finds_nothing_writes_nothing(open_ledger, tmp_path):
    ledger = open_ledger(tmp_path, Clock(), Limits())
    _, actor = await started(ledger, 1)
    await ledger.claim(claim_request("actor-0", actor))
    before = ledger.position
    assert (await ledger.claim(claim_request("actor-0", actor, held=("t/0",)))).leases == ()
    assert ledger.position == before
    await ledger.close()

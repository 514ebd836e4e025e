"""What an actor gives up before its end is kept for the next one, as durably as a result."""

import pytest
from ledger_kit import TERM, Clock, admission, claim_request, failed, finished, started
from msgspec import structs

from rollout.codec import decode_prefixes, encode_prefixes
from rollout.ledger.records import Limits
from rollout.types import Prefix, VersionSpan

LIMITS = Limits(failures_max=2, losses_max=3)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def ledger(open_ledger, tmp_path, clock):
    made = open_ledger(tmp_path, clock, LIMITS)
    yield made
    await made.close()


def beginning(sample: int, *token_ids: int) -> Prefix:
    return Prefix(
        sample=sample,
        segment=1,
        prompt_ids=(1, 2),
        token_ids=token_ids,
        logprobs=(-0.5,) * len(token_ids),
        loss_mask=(1,) * len(token_ids),
        spans=(VersionSpan(start=0, end=len(token_ids), lineage=0, step=0),),
    )


def returned(lease, *prefixes: Prefix):
    return structs.replace(failed(lease, "returned"), prefixes=encode_prefixes(prefixes))


async def claim(ledger, actor, worker="actor-0"):
    return (await ledger.claim(claim_request(worker, actor))).leases[0]


async def test_the_next_actor_is_told_of_beginnings_and_gets_them_whole(ledger):
    _, actor = await started(ledger, 1)
    lease = await claim(ledger, actor)
    assert not lease.prefixed
    await ledger.submit("actor-0", actor, [returned(lease, beginning(0, 7, 8), beginning(1, 9))])

    other = (await ledger.register("actor-1", "actor")).incarnation
    again = await claim(ledger, other, "actor-1")

    assert (again.prefixed, again.epoch, again.attempt) == (True, 2, 1)
    kept = await ledger.prefixes_of(["t/0", "t/1"])
    assert decode_prefixes(kept["t/0"]) == (beginning(0, 7, 8), beginning(1, 9))
    assert set(kept) == {"t/0"}


async def test_beginnings_survive_the_store_being_closed(open_ledger, tmp_path, clock):
    first = open_ledger(tmp_path, clock, LIMITS)
    _, actor = await started(first, 1)
    await first.submit("actor-0", actor, [returned(await claim(first, actor), beginning(0, 7, 8))])
    await first.close()

    second = open_ledger(tmp_path, clock, LIMITS)
    assert decode_prefixes((await second.prefixes_of(["t/0"]))["t/0"]) == (beginning(0, 7, 8),)
    await second.close()


async def test_later_beginnings_take_the_place_of_earlier_ones_and_none_takes_nothing(ledger):
    _, actor = await started(ledger, 1)
    await ledger.submit("actor-0", actor, [returned(await claim(ledger, actor), beginning(0, 7))])
    await ledger.submit(
        "actor-0", actor, [returned(await claim(ledger, actor), beginning(0, 7, 8, 9))]
    )
    await ledger.submit("actor-0", actor, [failed(await claim(ledger, actor))])

    kept = await ledger.prefixes_of(["t/0"])
    assert decode_prefixes(kept["t/0"]) == (beginning(0, 7, 8, 9),)
    lease = await claim(ledger, actor)
    assert (lease.prefixed, lease.failures, lease.attempt) == (True, 1, 2)


async def test_a_result_ends_the_need_for_them(ledger):
    _, actor = await started(ledger, 1)
    await ledger.submit("actor-0", actor, [returned(await claim(ledger, actor), beginning(0, 7))])
    lease = await claim(ledger, actor)
    assert (await ledger.submit("actor-0", actor, [finished(lease)]))[0].accepted
    assert await ledger.prefixes_of(["t/0"]) == {}


async def test_a_worker_that_lost_its_lease_leaves_no_beginnings(ledger, clock):
    _, slow = await started(ledger, 1)
    old = await claim(ledger, slow)
    clock.now += TERM + 1
    fast = (await ledger.register("actor-1", "actor")).incarnation
    new = await claim(ledger, fast, "actor-1")

    verdict = (await ledger.submit("actor-0", slow, [returned(old, beginning(0, 7))]))[0]

    assert not verdict.accepted
    assert await ledger.prefixes_of(["t/0"]) == {}
    assert (await ledger.submit("actor-1", fast, [finished(new)]))[0].accepted


async def test_returning_twice_is_the_same_as_once(ledger):
    _, actor = await started(ledger, 1)
    end = returned(await claim(ledger, actor), beginning(0, 7))
    for _ in range(2):
        assert (await ledger.submit("actor-0", actor, [end]))[0].accepted
    await ledger.admit(admission(1, 2))
    assert len((await ledger.claim(claim_request("actor-0", actor))).leases) == 2

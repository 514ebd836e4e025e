"""The Lease: taken when free or silent, judged by our own clock, asked before every write."""

import asyncio
import copy

import pytest

from rollout_operator.controller.clocks import Clocks
from rollout_operator.errors import Conflict, NotFound, NotLeader, Unavailable
from rollout_operator.kube import leader as module
from rollout_operator.kube.leader import LEASE_SECONDS, RENEW_SECONDS_MAX, Leader


class Leases:
    """The Lease of an API server, with its optimistic lock."""

    def __init__(self):
        self.lease = None
        self.broken = False
        self.hangs = False
        self.reads = 0

    async def get(self, *_):
        self.reads += 1
        if self.hangs:
            await asyncio.sleep(600)
        if self.broken:
            raise Unavailable("get lease", 0, "cut")
        if self.lease is None:
            raise NotFound("get lease", 404, "none")
        return copy.deepcopy(self.lease)

    async def create_unguarded(self, body, *_, **__):
        if self.lease is not None:
            raise Conflict("create lease", 409, "exists")
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = "1"

    async def replace(self, body, *_, **__):
        if self.broken:
            raise Unavailable("update lease", 0, "cut")
        version = self.lease["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise Conflict("update lease", 409, "modified")
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(int(version) + 1)
        return copy.deepcopy(self.lease)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def pair():
    leases, clock = Leases(), Clock()
    both = (
        Leader(client=leases, namespace="n", identity=name, clocks=Clocks(monotonic=clock))
        for name in "ab"
    )
    return leases, clock, *both


async def test_the_first_takes_it_and_the_second_waits():
    _, _, first, second = pair()
    await first.step()
    await second.step()
    assert first.is_leader()
    with pytest.raises(NotLeader, match="not held by b"):
        second.require()


async def test_a_silent_holder_is_followed_after_the_leases_time():
    leases, clock, first, second = pair()
    await first.step()
    await second.step()
    clock.now += LEASE_SECONDS - 1
    await second.step()
    assert not second.is_leader()
    clock.now += 1
    await second.step()
    assert second.is_leader()
    assert leases.lease["spec"]["leaseTransitions"] == 1
    assert not first.is_leader()


async def test_a_holder_that_cannot_renew_stops_before_another_may_start():
    leases, clock, first, _ = pair()
    await first.step()
    leases.broken = True
    clock.now += RENEW_SECONDS_MAX
    with pytest.raises(Unavailable):
        await first.step()
    assert not first.is_leader()
    assert RENEW_SECONDS_MAX < LEASE_SECONDS


async def test_a_frozen_holder_finds_that_it_is_none_any_more():
    _, clock, first, _ = pair()
    await first.step()
    clock.now += 3600
    with pytest.raises(NotLeader):
        first.require()


async def test_a_holder_that_goes_gives_it_back():
    leases, _, first, second = pair()
    await first.step()
    await first.release()
    assert leases.lease["spec"]["holderIdentity"] == ""
    await second.step()
    assert second.is_leader()


async def test_renewing_keeps_the_time_it_was_taken():
    leases, clock, first, _ = pair()
    await first.step()
    taken = leases.lease["spec"]["acquireTime"]
    clock.now += 2
    await first.step()
    assert leases.lease["spec"]["acquireTime"] == taken
    assert leases.lease["spec"]["leaseTransitions"] == 0


async def test_a_holder_renews_with_one_call_and_looks_again_when_it_is_refused():
    leases, clock, first, second = pair()
    await first.step()
    await first.step()
    reads = leases.reads
    await first.step()
    assert leases.reads == reads
    await second.step()
    clock.now += LEASE_SECONDS
    await second.step()
    assert second.is_leader()
    await first.step()
    assert not first.is_leader()
    assert leases.lease["spec"]["holderIdentity"] == "b"


async def test_whoever_reads_that_another_one_holds_it_leads_no_more_whatever_its_clock_says():
    leases, clock, _, second = pair()
    stands_still = Clocks(monotonic=lambda: 100.0)
    first = Leader(client=leases, namespace="n", identity="a", clocks=stands_still)
    await first.step()
    await second.step()
    clock.now += LEASE_SECONDS
    await second.step()
    assert first.is_leader()
    assert second.is_leader()
    await first.step()
    await first.step()
    assert not first.is_leader()
    with pytest.raises(NotLeader):
        first.require()


async def test_whoever_takes_it_from_a_silent_holder_leads_at_once():
    _, clock, first, second = pair()
    await first.step()
    await second.step()
    clock.now += LEASE_SECONDS
    await second.step()
    assert second.is_leader()


async def test_a_call_that_hangs_is_given_up_in_time_for_another(monkeypatch):
    assert 2 * (module.TRY_SECONDS_MAX + module.RETRY_SECONDS) <= RENEW_SECONDS_MAX
    monkeypatch.setattr(module, "TRY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    leases, _, first, _ = pair()
    leases.hangs = True
    running = asyncio.create_task(first.run())
    while not leases.reads:
        await asyncio.sleep(0.01)
    leases.hangs = False
    await asyncio.wait_for(first.leading.wait(), 60)
    running.cancel()
    assert first.is_leader()

"""``limits.noProgressSeconds`` where an operator starts the workers: the coordinator says who does not move."""

import msgspec
from coordinator_kit import FakeActor, FakeLearner

from rollout.coordinator.status.overview import build_status
from rollout.coordinator.status.progress import describe_progress
from rollout.coordinator.status.stalls import StallWatch, name_culprit


class Watched:
    """A bench's run, its clock ours, and a watch of 60 seconds."""

    def __init__(self, bench):
        self.client, self.bench = bench.start(), bench
        self.run, self.clock = bench.coordinator.run, bench.hold_clock()
        self.watch = StallWatch(seconds=60.0)

    def look(self, after=0.0, asks=None):
        """``asks`` is a learner that has waited all the time, and is heard."""
        self.clock.now += after
        if asks is not None:
            asks.ask()
        self.watch.look(self.run)
        return describe_progress(self.run).stuck


def test_an_actor_that_keeps_its_task_is_named_and_given_its_time_again(bench):
    watched = Watched(bench)
    learner = FakeLearner(watched.client, bench.store)
    actor = FakeActor(watched.client)
    actor.claim()
    assert watched.look(asks=learner) is None
    assert watched.look(after=59.0, asks=learner) is None
    stuck = watched.look(after=2.0, asks=learner)
    assert stuck.worker == actor.name
    assert "nothing has moved for 61 s" in stuck.message
    first = stuck.time
    assert watched.look(after=30.0, asks=learner).time == first


def test_a_step_ends_it(bench):
    watched = Watched(bench)
    actor, learner = FakeActor(watched.client), FakeLearner(watched.client, bench.store)
    watched.look()
    assert watched.look(after=61.0) is not None
    actor.work()
    learner.commit(learner.ask())
    assert watched.look(after=1.0) is None


def test_a_worker_that_only_waits_is_not_blamed(bench):
    watched = Watched(bench)
    FakeActor(watched.client)
    status = build_status(watched.run)
    named = [msgspec.structs.replace(one, culprit="nobody") for one in status.waiting]
    status = msgspec.structs.replace(status, waiting=tuple(named))
    assert name_culprit(status, 30.0) == ""
    silent = [msgspec.structs.replace(one, heartbeat_age_seconds=31.0) for one in status.workers]
    status = msgspec.structs.replace(status, workers=tuple(silent))
    assert name_culprit(status, 30.0) == status.workers[0].worker

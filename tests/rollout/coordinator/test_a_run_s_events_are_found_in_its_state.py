"""A run says that it begins, has a snapshot, a best version, misses a gate, is stuck and ends: each once, however it goes on."""

from dataclasses import replace
from datetime import UTC, datetime

from coordinator_kit import (
    HELDOUT,
    PLAN,
    FakeActor,
    FakeLearner,
    Recorder,
    run_to_end,
    wait_for_outcome,
)
from plans import changed

from rollout.coordinator.context import Stuck
from rollout.coordinator.plan import Gate
from rollout.coordinator.settings import StepsResolver


class EventsRecorder(Recorder):
    """Keeps what is new, as trackers of events do; ``full``: so often there is no room."""

    def __init__(self, full=0):
        super().__init__()
        self.events, self.full = {}, full

    def announce(self, events):
        if self.full:
            self.full -= 1
            raise OSError("no room")
        for one in events:
            self.events.setdefault(one.ident, one)


GATED = replace(HELDOUT, gate=Gate(metric="accuracy", lower_bound=0.9, fails=True))


def play(bench, recorder, **changes):
    plan = changed(PLAN, evaluations=(GATED,), **changes)
    client = bench.start(plan, resolver=StepsResolver(begun=plan, opened=[recorder]))
    learner = FakeLearner(client, bench.store)
    actor = FakeActor(client, reward=lambda task, sample: 0.5 if task.kind == "eval" else 1.0)
    run_to_end(actor, learner)
    actor.work()
    learner.finish()
    wait_for_outcome(client)
    bench.stop()


def test_from_its_start_to_its_end_and_what_the_disk_refused_comes_again(bench):
    recorder = EventsRecorder(full=2)
    play(bench, recorder)
    found = list(recorder.events.values())

    assert [one.kind for one in found[:1] + found[-2:]] == ["started", "gate", "failed"]
    (best,) = [one for one in found if one.kind == "best"]
    assert (best.data["metric"], best.data["value"]) == ("accuracy", 0.5)
    assert [one for one in found if one.kind == "snapshot"]
    assert found[-1].data["reason"] == "GateFailed"
    assert "the gate wants 0.9" in found[-2].data["message"]


def test_another_life_of_the_same_attempt_says_the_same_again_and_another_attempt_its_own(bench):
    first, second, third = EventsRecorder(), EventsRecorder(), EventsRecorder()
    play(bench, first, attempt=1)
    for recorder, attempt in ((second, 1), (third, 2)):
        plan = changed(PLAN, evaluations=(GATED,), attempt=attempt)
        bench.start(plan, resolver=StepsResolver(begun=plan, opened=[recorder]))
        bench.stop()

    assert second.events.keys() <= first.events.keys()
    assert {one.ident for one in second.events.values() if one.kind == "failed"} == {"ended/1"}
    assert "started/2" in third.events
    assert "ended/1" not in third.events


def test_a_run_that_is_stuck_says_who_holds_it_up(bench):
    recorder = EventsRecorder()
    bench.start(resolver=StepsResolver(begun=PLAN, opened=[recorder]))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    bench.coordinator.run.stuck = Stuck(worker="actor-1", message="nothing has moved", at=at)
    bench.stop()

    (stuck,) = [one for one in recorder.events.values() if one.kind == "stuck"]
    assert stuck.data["worker"] == "actor-1"

"""A claim whose answer was lost gets its leases again; their version may be gone by then."""

from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed


def test_a_lease_of_a_retired_version_is_made_anew_under_the_policy_of_now(bench):
    client = bench.start(changed(PLAN, exact=False, staleness_max=1))
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    lost = actor.claim(tasks_max=2).tasks
    run = bench.coordinator.run
    run.state.versions.clear()
    learner_version = run.state.version
    assert actor.claim(tasks_max=2).tasks == ()
    run.state.versions[(0, 0)] = learner_version
    again = actor.claim(tasks_max=2, wait=1.0).tasks
    assert [one.task_id for one in again] == [one.task_id for one in lost]
    assert [one.epoch for one in again] == [one.epoch + 1 for one in lost]
    assert bench.coordinator.unexpected_errors == 0
    assert [actor.submit(actor.play(one)).accepted for one in lost] == [(False,)] * 2

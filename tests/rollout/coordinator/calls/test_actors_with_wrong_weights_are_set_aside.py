"""An actor whose weights do not verify samples nothing; more than half of them stop the run, by name."""

from coordinator_kit import FakeActor, FakeLearner, wait_for_outcome

from rollout.coordinator.calls.weight_health import WRONG_MAX, describe_stall
from rollout.protocol import messages as m
from rollout.protocol import routes


def load(actor: FakeActor, version, *, digest: str | None = None, times: int = 1) -> None:
    """Report loads of a version; ``digest`` is what was met, None what was expected."""
    for _ in range(times):
        actor.call(
            routes.ACTIVATION,
            m.Activation(
                version=version,
                digest=version.digest if digest is None else digest,
                ok=digest is None,
                seconds=0.1,
                message="" if digest is None else f"loaded {digest or 'nothing'}",
            ),
        )


def begin(bench, num_actors: int):
    client = bench.start()
    FakeLearner(client, bench.store)
    actors = [FakeActor(client, index) for index in range(num_actors)]
    return client, actors, actors[0].claim().tasks[0].version


def worker(client, name: str):
    return next(one for one in client.status().workers if one.worker == name)


def verified(client):
    return next(c for c in client.status().conditions if c.type == "WeightsVerified")


def test_one_wrong_load_is_counted_and_shown_until_a_good_one(bench):
    client, (actor,), version = begin(bench, 1)

    load(actor, version, digest="blake3:bad")

    assert not verified(client).status
    assert "actor-0: loaded blake3:bad" in verified(client).message
    load(actor, version)
    assert verified(client).status
    assert worker(client, "actor-0").num_wrong == 1
    assert client.status().outcome is None


def test_half_of_the_actors_may_be_wrong_for_good(bench):
    client, (bad, good), version = begin(bench, 2)

    load(good, version)
    load(bad, version, digest="blake3:bad", times=3 * WRONG_MAX)
    run = bench.coordinator.run
    assert not describe_stall(run.state.workers.values(), run.clock() + 1e6, 0.0)

    assert client.status().outcome is None
    assert worker(client, "actor-0").num_wrong == 3 * WRONG_MAX


def test_actors_that_only_an_earlier_coordinator_heard_count(bench):
    _, (bad,), version = begin(bench, 1)
    load(bad, version, digest="blake3:bad", times=WRONG_MAX)
    run = bench.coordinator.run
    late = run.clock() + 1e6

    assert "1 of 1 actors" in describe_stall(run.state.workers.values(), late, 0.0)
    before = frozenset({"actor-0", "actor-1"})
    assert not describe_stall(run.state.workers.values(), late, 0.0, before)


def test_more_than_half_for_a_lease_term_stop_the_run_and_are_named(bench):
    client, (good, *bad), version = begin(bench, 3)
    run = bench.coordinator.run
    clock = run.clock

    load(good, version)
    for actor in bad:
        load(actor, version, digest="blake3:bad", times=WRONG_MAX)
    assert client.status().outcome is None
    run.clock = lambda: clock() + run.plan.lease_seconds
    load(bad[0], version, digest="blake3:bad")

    outcome = wait_for_outcome(client)
    assert (outcome.kind, outcome.reason) == ("Failed", "ActorsQuarantined")
    assert "2 of 3 actors" in outcome.message
    assert all(actor.name in outcome.message for actor in bad)
    assert good.claim().stop


def test_an_engine_that_crashes_is_not_one_with_wrong_weights(bench):
    client, (actor,), version = begin(bench, 1)

    load(actor, version, digest="", times=3 * WRONG_MAX)

    assert client.status().outcome is None
    assert worker(client, "actor-0").num_wrong == 0

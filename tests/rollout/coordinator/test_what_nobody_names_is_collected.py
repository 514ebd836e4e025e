"""Objects that were stored and never named go when a learner starts and when it has saved an anchor; others stay."""

import asyncio

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, run_to_end, wait_for_outcome
from plans import changed

from rollout.coordinator.duties.model_export import hand_over
from rollout.errors import StoreError
from rollout.models.packed import PackedModel
from rollout.protocol import messages as m
from rollout.protocol import routes

LONG = changed(PLAN, exact=False, anchors_kept=1, steps_max=20)


def commit_steps(learner, actor, num):
    for _ in range(num):
        batch = learner.ask()
        while batch.waiting is not None:
            actor.work()
            batch = learner.ask()
        learner.commit(batch)


def needed(run):
    state = run.state
    kept = {name for version in state.versions.values() for name in version.objects}
    anchored = {name for anchor in state.anchors for name in anchor.objects.values()}
    return kept | anchored


def test_what_a_killed_learner_had_stored_goes_when_the_next_one_starts(bench):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 2)
    lost = bench.store.put(b"weights of a step that was never committed")

    FakeLearner(client, bench.store)

    assert not bench.store.has(lost)
    assert needed(bench.coordinator.run) <= set(bench.store.names())


def test_what_an_anchor_left_that_was_never_reported_goes_with_the_next_one(bench):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    lost = bench.store.put(b"optimizer of an anchor whose upload broke off")

    learner.anchor()

    assert not bench.store.has(lost)
    assert set(bench.store.names()) == needed(bench.coordinator.run)


def test_what_a_learner_is_storing_now_is_left_alone(bench):
    """Steps, heartbeats and a new life of the coordinator delete nothing that has no name yet."""
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    early = bench.store.put(b"the first part of an anchor on its way")
    commit_steps(learner, actor, 4)
    client = bench.start(LONG)
    learner.client = client
    learner.call(routes.LEARNER_HEARTBEAT, m.Heartbeat(state="anchor"))

    assert bench.store.has(early)


def test_a_packed_model_stays_for_the_runs_that_name_it(bench):
    packed = []

    def pack(store, version):
        packed.append(store.put(f"the model of step {version.step}, packed".encode()))
        return str(PackedModel(place="s3://bucket/uid-1", digest=packed[-1]))

    client = bench.start()
    learner = FakeLearner(client, bench.store)
    run_to_end(FakeActor(client), learner)
    learner.finish()
    wait_for_outcome(client)
    bench.coordinator.run.packer = pack
    asyncio.run(hand_over(bench.coordinator.run))
    lost = bench.store.put(b"named by nobody")

    longer = changed(PLAN, steps_max=6, attempt=2)
    FakeLearner(bench.start(longer), bench.store)

    assert packed
    assert all(map(bench.store.has, packed))
    assert not bench.store.has(lost)


def test_models_that_the_manifest_brings_are_pinned(bench):
    brought = bench.store.put(b"another run's model, brought for this run's pods")
    client = bench.start(LONG)
    bench.coordinator.run.pinned = frozenset([brought])

    FakeLearner(client, bench.store).anchor()

    assert bench.store.has(brought)


def test_anchors_of_steps_that_a_fork_has_left_behind_go(bench):
    client = bench.start(changed(LONG, anchors_kept=3))
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 2)
    learner.anchor()
    run = bench.coordinator.run
    dead = run.state.anchors[-1]
    fork = m.Fork(step=1, version=learner.version(1, "f"), chain="c", reason="it differs")
    learner.lineage = learner.call(routes.FORK, fork).lineage
    learner.step = 1
    learner.anchor()

    bench.stop()

    assert not bench.store.has(dead.objects["optimizer"])
    with bench.reader() as reader:
        assert reader.state().dead_anchors == ()


@pytest.mark.parametrize("verb", ["names", "delete"])
def test_a_place_that_refuses_to_list_or_delete_stops_nobody(bench, monkeypatch, caplog, verb):
    def refuse(*_):
        raise StoreError("not allowed")

    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    lost = bench.store.put(b"named by nobody")
    monkeypatch.setattr(bench.store, verb, refuse)
    learner.anchor()

    assert bench.coordinator.run.state.anchors
    assert bench.store.has(lost)
    assert "not allowed" in caplog.text

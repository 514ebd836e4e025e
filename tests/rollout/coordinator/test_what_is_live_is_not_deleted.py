"""Retention beside forks and commits: the files and objects of what is live stay."""

import time
from dataclasses import replace

import msgspec
import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.errors import CoordinatorError
from rollout.learner.checkpoint import name_anchor, write_manifest
from rollout.protocol import messages as m
from rollout.protocol import routes

LONG = changed(PLAN, exact=False, anchors_kept=1, steps_max=20)
SECONDS_MAX = 60.0


def wait_until(true):
    deadline = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commit_steps(learner, actor, num):
    for _ in range(num):
        batch = learner.ask()
        while batch.waiting is not None:
            actor.work()
            batch = learner.ask()
        learner.commit(batch)


def save(bench, learner, name, tag):
    """As the learner does: the file first, then the word to the coordinator."""
    version = learner.version(learner.step, tag)
    manifest = m.AnchorManifest(
        name=name,
        lineage=learner.lineage,
        step=learner.step,
        chain="x",
        version=version,
        objects={"weights": version.object, "optimizer": bench.store.put(tag.encode())},
    )
    write_manifest(bench.folder / "snapshots", manifest)
    learner.call(routes.ANCHOR, m.AnchorSaved(manifest=manifest))
    return bench.folder / "snapshots" / f"{name}.json"


def test_the_file_of_a_live_anchor_outlives_that_of_its_namesake(bench):
    """Written by a learner that left the lineage out of the name."""
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    save(bench, learner, "step-000001", "a")
    version = learner.version(1, "f")
    ask = m.Fork(
        step=1,
        version=version,
        chain="c",
        reason="the runtime changed",
    )
    learner.lineage = learner.call(routes.FORK, ask).lineage
    file = save(bench, learner, "step-000001", "b")
    run = bench.coordinator.run
    wait_until(lambda: [one.lineage for one in run.state.anchors] == [1])
    bench.stop()
    assert msgspec.json.decode(file.read_bytes(), type=m.AnchorManifest).lineage == 1


def test_anchors_of_one_step_have_names_of_their_own():
    assert name_anchor(0, 7) == "step-000007"
    assert name_anchor(1, 7) == "step-000007-lineage-1"
    assert len({name_anchor(lineage, step) for lineage in range(3) for step in range(3)}) == 9


def test_objects_are_deleted_in_turn_with_commits(bench, monkeypatch):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    run, delete, turns = bench.coordinator.run, bench.store.delete, []

    def note(digest):
        turns.append(run.turn.locked())
        delete(digest)

    monkeypatch.setattr(bench.store, "delete", note)
    commit_steps(learner, actor, 5)
    wait_until(lambda: turns)
    noted = list(
        turns
    )  # a coordinator that is told to end leaves its turn, and a deletion under way, as they are
    bench.stop()
    assert all(noted)


@pytest.mark.parametrize("gone", ["its own", "its base"])
def test_a_commit_that_builds_on_what_was_deleted_is_refused(bench, gone):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    actor.work()
    batch = learner.ask()
    base = bench.store.put(b"a dense base")
    version = replace(learner.version(batch.step, "delta"), bases=(base,))
    bench.store.delete(base if gone == "its base" else version.object)
    with pytest.raises(CoordinatorError, match="not in the store"):
        learner.commit(batch, version=version)


def test_a_late_copy_of_an_anchor_collects_nothing(bench):
    """The learner does not wait for its answer: it may be storing the next anchor."""
    client = bench.start(changed(LONG, anchors_kept=2))
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    saved = [save(bench, learner, "step-000001", "a")]
    commit_steps(learner, actor, 1)
    saved.append(save(bench, learner, "step-000002", "b"))
    coming = bench.store.put(b"of the next anchor")

    for file in saved:
        manifest = msgspec.json.decode(file.read_bytes(), type=m.AnchorManifest)
        learner.call(routes.ANCHOR, m.AnchorSaved(manifest=manifest))

    assert bench.store.has(coming)
    commit_steps(learner, actor, 1)
    save(bench, learner, "step-000003", "c")
    assert not bench.store.has(coming)


def test_the_version_of_an_anchor_that_is_being_written_stays_until_it_is_saved(bench):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    run = bench.coordinator.run

    def go_on(num, saving):
        for _ in range(num):
            ask = m.BatchRequest(step=learner.step + 1, saving=saving)
            while (batch := learner.call(routes.BATCH, ask)).waiting is not None:
                actor.work()
            learner.commit(batch)

    def only_live(*steps):
        live = {step for _, step in run.state.versions}
        return live == {0, *steps}

    go_on(2, None)
    version = run.state.versions[0, 2]
    go_on(6, (0, 2))
    wait_until(lambda: only_live(2, *range(8 - LONG.train.staleness_max - 1, 9)))
    assert bench.store.has(version.object)
    go_on(1, None)
    wait_until(lambda: only_live(*range(9 - LONG.train.staleness_max - 1, 10)))
    wait_until(lambda: not bench.store.has(version.object))


def test_a_new_learner_writes_no_anchor_of_the_one_before(bench):
    client = bench.start(LONG)
    learner = FakeLearner(client, bench.store)
    learner.call(routes.BATCH, m.BatchRequest(step=1, saving=(0, 0)))
    assert bench.coordinator.run.saving == (0, 0)
    FakeLearner(client, bench.store)
    assert bench.coordinator.run.saving is None

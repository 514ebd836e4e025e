"""Learning from rows has no actor: weights are stored with anchors only, and every version keeps its name."""

from dataclasses import replace

import pytest

from rollout.learner.loop import run_learner


def run(world, calls, *, stores_each_step):
    parts = replace(world.parts(calls), stores_each_step=stores_each_step)
    run_learner(parts, parts.session.start(1, "here"), world.watch)
    return parts.store


def test_names_and_chain_are_those_of_a_run_that_stores_every_step(world, coordinator):
    lean, full = coordinator(steps_max=7), coordinator(steps_max=7)

    lean_store = run(world, lean, stores_each_step=False)
    full_store = run(replace(world, folder=world.folder / "full"), full, stores_each_step=True)

    assert lean.chain() == full.chain()
    objects = [record.version.object for record in lean.records.values()]
    assert objects == [record.version.object for record in full.records.values()]
    assert all(map(full_store.has, objects))
    assert [step for step, name in enumerate(objects, 1) if lean_store.has(name)] == [3, 6, 7]


@pytest.mark.parametrize("ends_after", [4, 6])
def test_a_run_that_went_on_elsewhere_finds_what_it_needs(world, coordinator, ends_after):
    calls, whole = coordinator(steps_max=ends_after), coordinator(steps_max=8)
    run(world, calls, stores_each_step=False)
    calls.anchors.pop()  # the last anchor was lost: its steps are taken again
    calls.steps_max = 8

    store = run(world, calls, stores_each_step=False)

    run(replace(world, folder=world.folder / "whole"), whole, stores_each_step=False)
    assert calls.chain() == whole.chain()
    assert all(store.has(anchor.version.object) for anchor in calls.anchors)
    assert not calls.forks

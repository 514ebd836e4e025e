"""Anchors restore bit for bit; what cannot be repeated becomes a new, logical lineage."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import msgspec
import pytest
import torch

from rollout.errors import RunFailed, SpecError, StoreError
from rollout.learner.checkpoint import restore_anchor
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model import randomness
from rollout.protocol import messages as m

CPU = torch.device("cpu")


def test_an_anchor_restores_every_bit(world, coordinator) -> None:
    calls = coordinator(steps_max=3)
    old = world.run(calls)
    saved = randomness.capture(CPU)
    fresh = world.parts(None)
    torch.rand(3)
    manifest = calls.anchors[-1]
    progress = restore_anchor(manifest, fresh.store, fresh.trainer)
    assert (progress.step, progress.chain) == (3, calls.chain(3))
    assert randomness.capture(CPU) == saved
    for name, master in old.trainer.policy.masters.items():
        restored = fresh.trainer.policy.masters[name]
        assert torch.equal(master, restored)
        before = old.trainer.optimizer.state[master]
        after = fresh.trainer.optimizer.state[restored]
        assert set(after) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(before[key], after[key]) for key in before)
    assert float(after["step"]) == 3


def test_manifests_are_complete_files_of_what_was_reported(world, coordinator) -> None:
    calls = coordinator(steps_max=5)
    world.run(calls)
    folder = world.folder / "snapshots"
    assert sorted(p.name for p in folder.iterdir()) == ["step-000003.json", "step-000005.json"]
    last = json.loads((folder / "step-000005.json").read_text())
    assert last == json.loads(msgspec.json.encode(calls.anchors[-1]))
    assert set(last["objects"]) == {"weights", "optimizer", "rng"}
    assert last["state"]["identity"]["torch"] == str(torch.__version__)


def test_a_damaged_object_is_refused(world, coordinator) -> None:
    calls = coordinator(steps_max=3)
    parts = world.run(calls)
    path = parts.store.path(calls.anchors[-1].objects["optimizer"])
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StoreError, match="damaged"):
        world.run(calls)


def test_a_lost_version_is_stored_again(world, coordinator) -> None:
    calls = coordinator(steps_max=4)
    parts = world.run(calls)
    calls.anchors = [a for a in calls.anchors if a.step == 3]
    version = calls.records[4].version
    parts.store.delete(version.object)
    world.run(calls)
    assert parts.store.has(version.object)
    assert not calls.forks


def test_a_learner_that_is_asked_to_stores_its_version_again(world, coordinator) -> None:
    undisturbed = coordinator(steps_max=4)
    world.run(undisturbed)
    calls = coordinator(steps_max=4)
    answer, asked = calls.batch, []

    def batch(ask: m.BatchRequest) -> m.Batch:
        if ask.step == 3 and not asked:
            asked.append(calls.records[2].version)
            return m.Batch(step=3, waiting="the learner", store_again=True)
        return answer(ask)

    calls.batch = batch
    parts = world.run(calls)
    assert asked
    assert parts.store.has(calls.records[2].version.object)
    assert calls.records[2].version.bases == ()
    assert calls.records[4].chain == undisturbed.records[4].chain


def test_a_replay_that_differs_opens_a_logical_lineage(world, coordinator) -> None:
    calls = coordinator(steps_max=4)
    world.run(calls)
    # As if the hardware had computed step 4 differently the first time, with the last anchor at 3.
    calls.anchors = [a for a in calls.anchors if a.step == 3]
    version = replace(calls.records[4].version, digest="blake3:" + "f" * 64)
    calls.records[4] = msgspec.structs.replace(calls.records[4], version=version)
    calls.steps_max = 6
    world.run(calls)
    fork = calls.forks[0]
    assert (fork.step, "step 4" in fork.reason, len(calls.forks)) == (4, True, 1)
    assert {r.lineage for s, r in calls.records.items() if s >= 4} == {1}
    assert calls.committed == 6
    assert {a.grade for a in calls.anchors if a.step >= 4} == {"logical"}


def test_another_runtime_is_graded_logical(world, coordinator) -> None:
    calls = coordinator(steps_max=3)
    world.run(calls)
    calls.steps_max = 4
    parts = replace(world.parts(calls), identity={"torch": "9.9"})
    run_learner(parts, parts.session.start(1, "here"), Watch())
    assert len(calls.forks) == 1
    assert "torch" in calls.forks[0].reason
    assert calls.records[4].lineage == 1


def test_without_a_claim_to_equality_another_runtime_just_goes_on(world, coordinator) -> None:
    fast = replace(world, settings=replace(world.settings, exact=False))
    calls = coordinator(steps_max=3)
    fast.run(calls)
    calls.steps_max = 4
    parts = replace(fast.parts(calls), identity={"torch": "9.9"})
    run_learner(parts, parts.session.start(1, "here"), Watch())
    assert (calls.committed, calls.forks) == (4, [])


def test_another_model_is_refused(world, coordinator) -> None:
    calls = coordinator(steps_max=2)
    world.run(calls)
    calls.anchors.clear()
    calls.initial = replace(calls.initial, digest="blake3:" + "e" * 64)
    with pytest.raises(SpecError, match="put the old files back"):
        world.run(calls)


def test_missing_records_are_a_contradiction(world, coordinator) -> None:
    calls = coordinator(steps_max=4)
    world.run(calls)
    calls.anchors = [a for a in calls.anchors if a.step == 3]
    parts = world.parts(calls)
    started = msgspec.structs.replace(parts.session.start(1, "here"), replay=())
    with pytest.raises(RunFailed, match="the ledger's last step is 4"):
        run_learner(parts, started, Watch())


@pytest.mark.parametrize(
    ("told_at", "seconds", "anchor"),
    [
        pytest.param(2, 60.0, 2, id="time enough"),
        pytest.param(2, 0.0, None, id="no time, or Drain"),
        pytest.param(4, 60.0, 4, id="the last anchor was quick"),
        pytest.param(4, 0.5, 3, id="the last anchor took a second"),
        pytest.param(3, 60.0, 3, id="just saved"),
    ],
)
def test_a_learner_that_is_told_to_go_saves_what_fits(
    world, coordinator, told_at, seconds, anchor
) -> None:
    calm, calls = coordinator(steps_max=6), coordinator(steps_max=6)
    replace(world, folder=world.folder / "calm").run(calm)
    parts = world.parts(calls)
    ticks = itertools.count()
    told = Watch(
        clock=lambda: float(next(ticks)),
        told_seconds=lambda: seconds if calls.committed == told_at else None,
    )
    assert run_learner(parts, parts.session.start(1, "here"), told) == "Preempted"
    assert [saved.step for saved in calls.anchors][-1:] == ([] if anchor is None else [anchor])
    world.run(calls)
    assert calls.records == calm.records


def test_hashing_every_few_steps_still_chains_every_token(
    world, coordinator, batch_of, groups_of
) -> None:
    settings = replace(world.settings, hash_every_steps=10, optimizer=_still(world))
    world = replace(world, settings=settings)
    one = coordinator(steps_max=2)
    replace(world, folder=world.folder / "one").run(one)

    def other_tokens(step):
        groups = groups_of(step)
        first = groups[0].trajectories[0]
        changed = replace(first, token_ids=((first.token_ids[0] + 1) % 250, *first.token_ids[1:]))
        changed_group = replace(groups[0], trajectories=(changed, *groups[0].trajectories[1:]))
        return batch_of(step, (changed_group, *groups[1:]))

    two = coordinator(steps_max=2, make=other_tokens)
    replace(world, folder=world.folder / "two").run(two)
    assert one.records[2].version.digest == two.records[2].version.digest
    assert one.chain() != two.chain()


def _still(world):
    return replace(world.settings.optimizer, learning_rate=0.0)

"""An anchor is written while the next steps are taken: one at a time, reported once durable, and of the step that it names."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
import torch

from rollout.errors import NoSpace
from rollout.learner.anchoring import Anchoring
from rollout.learner.checkpoint import CapturedState, Progress, capture, state_groups, write_anchor
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol.messages import Cursor
from rollout.types import WeightVersion
from rollout.weights.staging import Staging

SECONDS_MAX = 60.0


@dataclass
class Held:
    """A store whose anchors are held up until a step is committed, by step."""

    inner: FilesystemStore
    calls: Any
    until: int
    events: list[str] = field(default_factory=list)
    committed: threading.Event = field(default_factory=threading.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def keep(self, digest: str, parts: Any) -> str:
        if threading.current_thread().name.startswith("anchor"):
            assert self.committed.wait(SECONDS_MAX), "training waits for the anchor"
            self.events.append("written")
        return self.inner.keep(digest, parts)

    def watching(self) -> Any:
        store, calls = self, self.calls

        class Watching:
            def __getattr__(self, name: str) -> Any:
                return getattr(calls, name)

            def as_worker(self, worker: str, incarnation: int = 0) -> Any:
                from routed_calls import RoutedCalls

                return RoutedCalls(self, incarnation)

            def commit(self, ask: Any) -> Any:
                answer = calls.commit(ask)
                store.events.append(f"step {ask.step}")
                if ask.step == store.until:
                    store.committed.set()
                return answer

            def anchor(self, ask: Any) -> Any:
                store.events.append(f"anchor {ask.manifest.step}")
                return calls.anchor(ask)

        return Watching()


def test_steps_are_committed_while_it_is_written_and_the_next_one_waits(world, coordinator) -> None:
    calm, calls = coordinator(steps_max=6), coordinator(steps_max=6)
    replace(world, folder=world.folder / "calm").run(calm)
    store = Held(FilesystemStore(world.folder / "objects"), calls, until=5)

    world.run(store.watching(), store)

    first = store.events.index("anchor 3")
    assert store.events.index("step 5") < store.events.index("written") < first
    assert first < store.events.index("anchor 6")
    assert calls.records == calm.records
    named = [(one.step, one.objects, one.chain) for one in calls.anchors]
    assert named == [(one.step, one.objects, one.chain) for one in calm.anchors]


def test_one_that_fails_is_named_and_ends_the_learner_as_before(world, coordinator, caplog) -> None:
    calm, calls = coordinator(steps_max=6), coordinator(steps_max=6)
    replace(world, folder=world.folder / "calm").run(calm)

    class Full(FilesystemStore):
        def keep(self, digest, parts):
            if threading.current_thread().name.startswith("anchor"):
                raise NoSpace("no space left to write there")
            return super().keep(digest, parts)

    with pytest.raises(NoSpace, match="no space left"):
        world.run(calls, Full(world.folder / "objects"))
    assert "anchor not saved step=3" in caplog.text
    assert calls.anchors == []
    world.run(calls)
    assert calls.records == calm.records


def test_no_more_steps_are_committed_after_the_last_one_than_may_be_replayed(
    world, coordinator, batch_of
) -> None:
    def batch(step):
        return msgspec.structs.replace(batch_of(step), replay_steps_max=4)

    calls = coordinator(steps_max=6, make=batch)
    store = Held(FilesystemStore(world.folder / "objects"), calls, until=4)
    world.run(store.watching(), store)
    assert store.events.index("anchor 3") < store.events.index("step 5")


@pytest.fixture
def progress():
    name = "blake3:" + "1" * 64
    version = WeightVersion(lineage=0, step=3, digest=name, object=name)
    return Progress(lineage=0, step=3, chain="c", version=version, cursor=Cursor(next_ordinal=0))


def test_what_is_written_is_the_state_of_its_step_whatever_training_does(
    world, coordinator, progress
) -> None:
    parts = world.run(coordinator(steps_max=2))
    plain = write_anchor(parts.place, captured_from(parts, progress))
    free, taken = threading.Event(), []

    class Slow(FilesystemStore):
        def keep(self, digest, keep_parts):
            taken.append(threading.current_thread().name)
            assert free.wait(SECONDS_MAX)
            return super().keep(digest, keep_parts)

    calls, store = coordinator(steps_max=2), Slow(world.folder / "others")
    there = replace(parts.place, store=store)
    session = world.parts(calls).session
    parts = replace(parts, place=there, session=session)
    with Anchoring(parts, -1, world.watch.clock, world.watch.wall_clock) as anchoring:
        anchoring.begin(progress)
        with torch.no_grad():
            for master in parts.trainer.policy.masters.values():
                master.fill_(7.0)
        assert anchoring.poll() == (0, 3)
        free.set()
        anchoring.finish(progress, None)
    assert taken
    assert [one.objects for one in calls.anchors] == [plain.objects]


def captured_from(parts, progress) -> CapturedState:
    groups = state_groups(parts.trainer)
    return capture(parts.trainer, progress, groups, identity={}, created_at=0.0)


def test_two_at_once_in_one_place_are_both_whole(world, coordinator, progress) -> None:
    parts = world.run(coordinator(steps_max=2))
    for number in range(10):
        store = FilesystemStore(world.folder / f"objects-{number}")
        place = replace(parts.place, store=store, snapshots_dir=world.folder / f"s-{number}")
        captured = captured_from(parts, progress)
        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(lambda _: write_anchor(place, captured), range(2)))  # noqa: B023
        assert made[0] == made[1]
        again = FilesystemStore(world.folder / f"objects-{number}")
        assert all(again.path(one) for one in made[0].objects.values())


def test_a_copy_is_made_in_the_same_memory_every_time() -> None:
    staging = Staging(lambda: 1 << 20)
    groups = {"a": {"x": torch.zeros(7), "y": torch.zeros(3, dtype=torch.bfloat16)}, "b": {}}
    first = staging.place(groups)
    assert first is not None
    places = [one.data_ptr() for one in first["a"].values()]
    assert staging.place(groups) is first
    assert [place % 64 for place in places] == [places[0] % 64] * 2
    assert first["a"]["y"].shape == (3,)
    other = staging.place({"a": {"x": torch.zeros(9)}})
    assert other is not None
    assert other["a"]["x"].shape == (9,)


def test_where_memory_is_scarce_training_waits_as_it_did(
    world, coordinator, monkeypatch, caplog
) -> None:
    assert Staging(lambda: 100).place({"a": {"x": torch.zeros(100)}}) is None
    calm, calls = coordinator(steps_max=4), coordinator(steps_max=4)
    replace(world, folder=world.folder / "calm").run(calm)
    monkeypatch.setattr(Staging, "place", lambda self, groups: None)
    world.run(calls)
    assert calls.records == calm.records
    assert [one.objects for one in calls.anchors] == [one.objects for one in calm.anchors]

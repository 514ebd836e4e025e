"""Killed before or after any call to the store, the disk or the coordinator, the chain is the same."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from routed_calls import RoutedCalls

import rollout.learner.checkpoint as state_module
from rollout.learner.model.numerics import apply_numerics
from rollout.objects.filesystem import FilesystemStore

STEPS = 5


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the learner may handle it."""


class Fuse:
    """Blows before or after the n-th outside effect, of whatever thread; never when ``at`` is None.

    Then nothing of that process has an effect any more, until the next one begins.
    """

    def __init__(self, at: int | None, *, after: bool) -> None:
        self.at, self.after, self.count = at, after, 0
        self.names: list[str] = []
        self.blown = False
        self._turn = threading.Lock()

    def around(self, name, effect):
        def call(*args, **kwargs):
            with self._turn:
                if self.blown:
                    raise Killed(name)
                self.count += 1
                self.names.append(name)
                mine = self.count == self.at
                self.blown = mine and not self.after
            if self.blown:
                raise Killed(name)
            result = effect(*args, **kwargs)
            if mine:
                self.blown = True
                raise Killed(name)
            return result

        return call


class Fused:
    """Another object with a fuse around each of the named methods."""

    def __init__(self, inner, fuse: Fuse, names: tuple[str, ...]) -> None:
        self._inner = inner
        for name in names:
            setattr(self, name, fuse.around(name, getattr(inner, name)))

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def as_worker(self, worker, incarnation=0):
        return RoutedCalls(self, incarnation)


STORES = ("put", "put_parts", "keep")
CALLS = ("start", "publish_initial", "batch", "replay", "commit", "anchor")


def end_threads(fuse: Fuse) -> None:
    """What a killed process leaves at work here does nothing, and has ended when the next one begins."""
    for thread in threading.enumerate():
        if thread.name.startswith("anchor"):
            thread.join()
    fuse.blown = False


def run_until_done(world, calls, monkeypatch, fuse: Fuse) -> int:
    """Incarnations that a run needed."""
    monkeypatch.setattr(
        state_module,
        "write_atomically",
        fuse.around("write_manifest", state_module.write_atomically),
    )
    for incarnation in range(1, 4):
        store = Fused(FilesystemStore(world.folder / "objects"), fuse, STORES)
        try:
            world.run(Fused(calls, fuse, CALLS), store)
        except Killed:
            end_threads(fuse)
            continue
        return incarnation
    raise AssertionError("the run did not end")


@pytest.fixture
def undisturbed(world, coordinator, monkeypatch):
    calls, fuse = coordinator(steps_max=STEPS), Fuse(None, after=False)
    with monkeypatch.context() as patch:
        run_until_done(replace(world, folder=world.folder / "calm"), calls, patch, fuse)
    return calls, fuse


def test_two_runs_have_the_same_chain(world, coordinator, undisturbed, monkeypatch) -> None:
    again = coordinator(steps_max=STEPS)
    run_until_done(world, again, monkeypatch, Fuse(None, after=False))
    assert again.records == undisturbed[0].records


def test_two_runs_on_two_threads_have_the_same_chain(world, coordinator) -> None:
    apply_numerics(threads=2, exact=True)
    one, two = coordinator(steps_max=2), coordinator(steps_max=2)
    replace(world, folder=world.folder / "one").run(one)
    replace(world, folder=world.folder / "two").run(two)
    assert one.records == two.records


def check_kill(at, after, world, coordinator, undisturbed, monkeypatch) -> None:
    calm, effects = undisturbed
    calls = coordinator(steps_max=STEPS)
    place = replace(world, folder=world.folder / f"{at}-{after}")
    with monkeypatch.context() as patch:
        incarnations = run_until_done(place, calls, patch, Fuse(at, after=after))
    assert incarnations == 2, effects.names[at - 1]
    assert calls.records == calm.records, effects.names[at - 1]
    assert not calls.forks


def test_a_kill_around_each_kind_of_effect_changes_nothing(
    world, coordinator, undisturbed, monkeypatch
) -> None:
    names = undisturbed[1].names
    assert set(names) == {*STORES, "write_manifest", *CALLS} - {"replay"}
    for name in set(names) - {"start", "publish_initial"}:
        late = len(names) - 1 - names[::-1].index(name)
        middle = names.index(name, len(names) // 3)
        check_kill(late + 1, False, world, coordinator, undisturbed, monkeypatch)
        check_kill(middle + 1, True, world, coordinator, undisturbed, monkeypatch)


@pytest.mark.slow
def test_a_kill_around_any_effect_changes_nothing(
    world, coordinator, undisturbed, monkeypatch
) -> None:
    for at in range(1, undisturbed[1].count + 1):
        for after in (False, True):
            check_kill(at, after, world, coordinator, undisturbed, monkeypatch)


def test_a_kill_in_each_of_two_incarnations_changes_nothing(
    world, coordinator, undisturbed, monkeypatch
) -> None:
    calm, _ = undisturbed
    calls = coordinator(steps_max=STEPS)
    for fuse in (Fuse(9, after=True), Fuse(6, after=False)):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(state_module, "write_atomically", state_module.write_atomically)
            store = Fused(FilesystemStore(world.folder / "objects"), fuse, STORES)
            world.run(Fused(calls, fuse, CALLS), store)
        end_threads(fuse)
    world.run(calls)
    assert calls.records == calm.records


def test_the_chain_tells_runs_of_another_seed_apart(world, coordinator, undisturbed) -> None:
    other = coordinator(steps_max=2)
    settings = replace(world.settings, spec_digest="blake3:" + "1" * 64)
    replace(world, settings=settings).run(other)
    assert other.records[2].version.digest == undisturbed[0].records[2].version.digest
    assert other.chain(2) != undisturbed[0].chain(2)

"""Equal bytes are one object: one that the learner found in the store may be deleted before the coordinator hears of it."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from rollout.errors import NotStored
from rollout.objects.filesystem import FilesystemStore

STEPS = 3


def named_by(ask: Any) -> set[str]:
    """Every object that a call names."""
    manifest = getattr(ask, "manifest", None)
    version = ask.version if manifest is None else manifest.version
    return {*version.objects, *(() if manifest is None else manifest.objects.values())} - {""}


@dataclass
class Collecting:
    """A coordinator whose collection deletes what a call names, just before the call."""

    inner: Any
    store: FilesystemStore
    times: int
    calls: tuple[str, ...]
    done: dict[str, int] = field(default_factory=dict)

    def as_worker(self, worker: str, incarnation: int = 0) -> Any:
        from routed_calls import RoutedCalls

        return RoutedCalls(self, incarnation)

    def __getattr__(self, name: str) -> Any:
        return partial(self.take, name) if name in self.calls else getattr(self.inner, name)

    def take(self, name: str, ask: Any) -> Any:
        if self.done.get(name, 0) < self.times:
            self.done[name] = self.done.get(name, 0) + 1
            for digest in named_by(ask):
                self.store.delete(digest)
        gone = sorted(digest for digest in named_by(ask) if not self.store.has(digest))
        if gone:
            raise NotStored(f"{name}: not in the store: {gone}")
        return getattr(self.inner, name)(ask)


@pytest.mark.parametrize("call", ["publish_initial", "commit", "anchor"])
def test_what_a_call_names_is_stored_again_and_the_chain_is_the_same(world, coordinator, call):
    calm, disturbed = coordinator(steps_max=STEPS), coordinator(steps_max=STEPS)
    replace(world, folder=world.folder / "calm").run(calm)
    store = FilesystemStore(world.folder / "objects")
    collecting = Collecting(disturbed, store, times=2, calls=(call,))

    world.run(collecting)

    assert collecting.done == {call: 2}
    chains = [one.records[STEPS].chain for one in (calm, disturbed)]
    assert chains[0] == chains[1]
    anchor = disturbed.anchors[-1]
    assert all(map(store.has, [*anchor.version.objects, *anchor.objects.values()]))


def test_what_is_gone_every_time_ends_the_learner(world, coordinator):
    store = FilesystemStore(world.folder / "objects")
    with pytest.raises(NotStored, match="anchor"):
        world.run(Collecting(coordinator(steps_max=STEPS), store, times=9, calls=("anchor",)))

"""Runs that start from each other: what the store knows of those that one waits for. Reads; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_api.conditions import Reason
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.queue import Key
from rollout_operator.run.index.references import RUN
from rollout_operator.run.plan.preconditions.upstreams import (
    RUNS_AHEAD_MAX,
    Upstream,
    from_runs,
    handed_on,
    wanted_model,
)


def find_upstreams(store: Store, mine: Key, spec: Mapping[str, Any]) -> tuple[Upstream, ...]:
    """The runs whose models the spec of an object takes, as the store knows them; ``mine`` is that object."""
    walk = _Walk(store=store, mine=mine)
    return tuple(_upstream(store, walk, one) for one in from_runs(spec))


def _upstream(store: Store, walk: _Walk, reference: Mapping[str, Any]) -> Upstream:
    name, snapshot = wanted_model(reference)
    found = store.find(walk.key_of(name))
    if found is not None and found.facts.finished:
        return _finished(found, snapshot)
    if walk.key_of(name) == walk.mine or walk.comes_back(name):
        return Upstream(name=name, state="Cycle")
    if found is None:
        return Upstream(name=name, state="Missing")
    return Upstream(name=name, state="Far" if walk.is_cut else "Waiting")


def _finished(found: Stored, snapshot: str) -> Upstream:
    status = found.read_status()
    ends = [c for c in status.get("conditions", ()) if c["type"] == "Finished"]
    if ends[0]["reason"] != Reason.SUCCEEDED.value:
        return Upstream(name=found.key.name, state="Failed")
    return handed_on(found.key.name, found.uid, snapshot, status)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """From run to run, against the direction in which models are handed on, no further than a bound.

    A run that has finished is not walked past: it waits for nobody. ``is_cut``: the bound was met, and
    what lies behind it is not known.
    """

    store: Store
    mine: Key
    is_cut: bool = False
    _seen: set[str] = field(default_factory=set)
    _num_looked_at: int = 0

    def key_of(self, name: str) -> Key:
        """A run of the same namespace."""
        return Key(namespace=self.mine.namespace, name=name, kind=RUN)

    def comes_back(self, start: str) -> bool:
        """Whether a run waits, by way of others, for mine; each run is looked at once in a walk."""
        waiting = [start]
        while waiting:
            if self._num_looked_at >= RUNS_AHEAD_MAX:
                self.is_cut = True
                return False
            self._num_looked_at += 1
            upstreams = self._waits_for(waiting.pop())
            if self.mine in map(self.key_of, upstreams):
                return True
            waiting += [name for name in upstreams if name not in self._seen]
            self._seen.update(upstreams)
        return False

    def _waits_for(self, name: str) -> tuple[str, ...]:
        found = self.store.find(self.key_of(name))
        if found is None or found.facts.finished:
            return ()
        return tuple(key.name for key in found.facts.references if key.kind == RUN)

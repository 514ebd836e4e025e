"""Runs that start from each other: what the store knows of those that one waits for. Reads; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_api.conditions import Reason
from rollout_operator.keys import Key
from rollout_operator.planning.upstreams import Upstream, from_runs, handed_on, wanted_model
from rollout_operator.store import Store
from rollout_operator.stored import Stored


def find_upstreams(store: Store, stored: Stored, spec: Mapping[str, Any]) -> tuple[Upstream, ...]:
    """The runs that a spec starts from, as the store knows them."""
    namespace = stored.key.namespace
    return tuple(
        _upstream(store, stored.key, Key(namespace=namespace, name=one.get("name", "")), one)
        for one in from_runs(spec)
    )


def _upstream(store: Store, mine: Key, key: Key, reference: Mapping[str, Any]) -> Upstream:
    if key == mine or _leads_to(store, key, mine):
        return Upstream(name=key.name, state="Cycle")
    found = store.find(key)
    if found is None:
        return Upstream(name=key.name, state="Missing")
    status = found.read_status()
    ends = [c for c in status.get("conditions", ()) if c["type"] == "Finished"]
    if not ends or ends[0]["status"] != "True":
        return Upstream(name=key.name, state="Waiting")
    if ends[0]["reason"] != Reason.SUCCEEDED.value:
        return Upstream(name=key.name, state="Failed")
    return handed_on(key.name, found.uid, wanted_model(reference)[1], status)


def _leads_to(store: Store, start: Key, goal: Key) -> bool:
    seen: set[Key] = set()
    waiting = [start]
    while waiting:
        key = waiting.pop()
        found = None if key in seen else store.find(key)
        seen.add(key)
        for name in found.facts.upstreams if found else ():
            following = Key(namespace=key.namespace, name=name)
            if following == goal:
                return True
            waiting.append(following)
    return False

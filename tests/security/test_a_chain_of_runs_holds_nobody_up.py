"""The attacker makes thousands of runs that start from each other, in a chain, a circle or a mesh."""

import json

import pytest
from worlds import SPEC

from rollout_operator.controller.queue import Key
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.index.upstreams import find_upstreams
from rollout_operator.run.plan.preconditions.upstreams import RUNS_AHEAD_MAX, check_upstreams

LONG = 2000


class CountingStore(RunStore):
    """Counts the runs that are looked at."""

    num_finds = 0

    def find(self, key):
        self.num_finds += 1
        return super().find(key)


def build_store(upstreams, statuses=None):
    store = CountingStore()
    for number, (name, wanted) in enumerate(upstreams.items(), 1):
        rewards = [{"model": {"fromRun": {"name": one}}} for one in wanted]
        spec = {**SPEC, "train": {**SPEC["train"], "rewards": rewards}}
        meta = {"name": name, "namespace": "a", "uid": name, "resourceVersion": str(number)}
        status = (statuses or {}).get(name, {})
        store.put_object("RolloutRun", {"metadata": meta, "spec": spec, "status": status})
    return store


def look(store, name):
    stored = store.find(Key(namespace="a", name=name, kind="RolloutRun"))
    store.num_finds = 0
    return find_upstreams(store, stored.key, json.loads(stored.spec))


def chain(length):
    return {f"r{n}": [f"r{n + 1}"] for n in range(length)}


def test_the_head_of_a_chain_looks_at_a_bounded_number_of_runs_and_waits():
    store = build_store(chain(LONG))
    found = look(store, "r0")
    assert store.num_finds <= RUNS_AHEAD_MAX + 2
    gate = check_upstreams(found)
    assert (gate.reason, gate.stalled) == ("WaitingForRun", False)
    assert "behind more than 256 others" in gate.message


def test_a_mesh_is_no_dearer_than_a_chain():
    names = [f"r{n}" for n in range(400)]
    store = build_store(dict.fromkeys(names, names[:20]))
    look(store, "r399")
    assert store.num_finds <= RUNS_AHEAD_MAX + 22


@pytest.mark.parametrize("length", [2, 100])
def test_a_circle_is_named_at_every_run_of_it(length):
    store = build_store({f"r{n}": [f"r{(n + 1) % length}"] for n in range(length)})
    for number in range(length):
        gate = check_upstreams(look(store, f"r{number}"))
        assert gate is not None and "circle" in gate.message and gate.reason == "InvalidSpec"


def test_a_run_that_has_finished_is_not_walked_past():
    over = {"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]}
    store = build_store(chain(LONG), {"r3": over})
    found = look(store, "r0")
    assert [one.state for one in found] == ["Waiting"]
    assert store.num_finds < 10

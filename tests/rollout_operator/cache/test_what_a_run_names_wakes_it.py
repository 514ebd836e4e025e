"""A run is woken by what its spec names, whether or not its status says by then that it waits for that."""

import pytest
from worlds import SPEC

from rollout_operator.controller.queue import Key
from rollout_operator.run.index.store import RunStore

RUN = Key(namespace="n", name="b", kind="RolloutRun")
OVER = {"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]}
WAITS = {"conditions": [{"type": "Ready", "status": "False", "reason": "WaitingForRun"}]}
RUNTIMES = [
    ({}, "RolloutRuntime", "n", "default"),
    ({}, "ClusterRolloutRuntime", "", "default"),
    ({"runtimeRef": {"name": "gpus"}}, "ClusterRolloutRuntime", "", "gpus"),
    ({"runtimeRef": {"kind": "RolloutRuntime", "name": "gpus"}}, "RolloutRuntime", "n", "gpus"),
]


def live(name, version, *, spec=SPEC, status=None, namespace="n", generation=1):
    meta = {"name": name, "uid": name, "resourceVersion": str(version), "generation": generation}
    return {
        "metadata": meta | ({"namespace": namespace} if namespace else {}),
        "spec": spec,
        "status": status or {},
    }


class Woken:
    """A store, and who was woken since the last question."""

    def __init__(self):
        self.keys = []
        self.store = RunStore(self.keys.append)

    def put(self, kind, document, *, notify=True):
        self.keys.clear()
        self.store.put_object(kind, document, notify=notify)
        return RUN in self.keys

    def drop(self, kind, document):
        self.keys.clear()
        self.store.drop_object(kind, document)
        return RUN in self.keys


@pytest.fixture
def woken():
    made = Woken()
    made.put("RolloutRun", live("b", 1, spec={**SPEC, "model": {"fromRun": {"name": "a"}}}))
    return made


def test_a_run_whose_first_status_is_not_written_yet_is_woken_when_the_one_it_starts_from_comes(
    woken,
):
    assert woken.put("RolloutRun", live("a", 2))


def test_a_run_is_woken_when_the_one_it_starts_from_ends_or_goes_and_not_while_it_works(woken):
    woken.put("RolloutRun", live("a", 2))
    assert not woken.put("RolloutRun", live("a", 3, status=WAITS))
    assert woken.put("RolloutRun", live("a", 4, status=OVER), notify=False)
    assert not woken.put("RolloutRun", live("a", 5, status={**OVER, "attempt": 1}))
    assert woken.drop("RolloutRun", live("a", 5))


def test_a_run_of_that_name_in_another_namespace_wakes_nobody(woken):
    assert not woken.put("RolloutRun", live("a", 2, namespace="other"))


@pytest.mark.parametrize(("named", "kind", "namespace", "name"), RUNTIMES)
def test_a_run_is_woken_by_its_runtime_before_its_status_says_that_it_lacks_one(
    named, kind, namespace, name
):
    made = Woken()
    made.put("RolloutRun", live("b", 1, spec={**SPEC, **named}))
    assert made.put(kind, live(name, 2, spec={}, namespace=namespace))
    assert not made.put(kind, live(name, 3, spec={}, namespace=namespace, status=WAITS))
    assert made.put(kind, live(name, 4, spec={}, namespace=namespace, generation=2))
    assert not made.put(kind, live("other", 5, spec={}, namespace=namespace))


def test_a_run_that_names_another_no_more_is_left_alone(woken):
    woken.put("RolloutRun", live("b", 2, generation=2))
    assert not woken.put("RolloutRun", live("a", 3))


def test_a_sweep_hears_of_the_coming_the_end_and_the_going_of_its_runs_and_of_nothing_else():
    woken, sweep = Woken(), Key(namespace="n", name="s", kind="RolloutSweep")
    woken.put("RolloutSweep", live("s", 1, spec={}))
    owner = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSweep", "name": "s"}

    def told(version, uid="s", namespace="n", status=None):
        run = live("s-000", version, namespace=namespace, status=status)
        run["metadata"]["ownerReferences"] = [{**owner, "uid": uid, "controller": True}]
        woken.put("RolloutRun", run)
        return woken.keys.count(sweep)

    assert told(2) == 1
    assert told(3, status={"progress": {"step": 4}}) == 0
    assert told(4, status=OVER) == 1
    woken.drop("RolloutRun", live("s-000", 4))
    assert woken.keys.count(sweep) == 1
    assert told(5, uid="another") == 0
    assert told(6, namespace="elsewhere") == 0

"""Two runs that together want more devices than there are: neither keeps half a learner, and both finish."""

import pytest
from operators import eventually, operating
from stage import DONE

from cluster.control.ports import find_free_port
from runs import build_run

LEDGER = {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}}
WIDE = {
    "storage": LEDGER,
    "train": {"algorithm": {"grpo": {"promptsPerStep": 24, "groupSize": 8}}},
    "learner": {"nodes": 3, "accelerator": {"className": "fake", "count": 4}},
    "limits": {"gangSeconds": 20},
}
"""Three pods of four devices; there are sixteen, so one run's learner fits, and a third of the other's."""
RUNS = ("one", "two")
SECONDS_MAX = 180.0


def conditions(kubectl, name):
    found = kubectl.get("rolloutrun", name).get("status", {}).get("conditions", ())
    return {one["type"]: one for one in found}


def learners(kubectl, name):
    """Pods of a learner that hold devices."""
    pods = kubectl.get("pods", "-l", f"rollout.dev/run={name},rollout.dev/role=learner")["items"]
    return [one for one in pods if one["spec"].get("nodeName")]


def runs_now(kubectl):
    """The run whose learner is complete, once there is one."""
    for name in RUNS:
        found = conditions(kubectl, name)
        if "Finished" not in found and found.get("LearnerReady", {}).get("status") == "True":
            return name
    return None


def finish(kubectl, name):
    kubectl.merge("rolloutrun", name, {"status": {"progress": DONE}}, "status")


@pytest.mark.control_plane
@pytest.mark.slow
def test_both_finish(on_nodes, tmp_path):
    """Quick: tests/rollout_operator/plan/test_the_learner_restarts_as_a_group.py gives devices back and tries again; the same scheduler and devices, e2e/selftest/nodes/test_fake_nodes_take_pods.py."""
    runtime = {"runtimeRef": {"kind": "ClusterRolloutRuntime", "name": on_nodes.namespace}}
    with operating(on_nodes.kubeconfig, find_free_port(), tmp_path / "log"):
        on_nodes.apply(*(build_run(name, {**WIDE, **runtime}) for name in RUNS))
        first = eventually(
            lambda: runs_now(on_nodes), "neither run began", seconds=SECONDS_MAX, every=1.0
        )
        other = next(name for name in RUNS if name != first)
        eventually(
            lambda: not learners(on_nodes, other),
            "the run that cannot begin keeps devices",
            seconds=SECONDS_MAX,
            every=1.0,
        )
        tries = on_nodes.get("statefulset", f"{other}-learner")["metadata"]["annotations"]
        assert int(tries["rollout.dev/gang-tries"]) >= 1
        finish(on_nodes, first)
        eventually(
            lambda: runs_now(on_nodes) == other,
            "the second run never began",
            seconds=SECONDS_MAX,
            every=1.0,
        )
        finish(on_nodes, other)
        for name in RUNS:
            on_nodes.wait("--for=condition=Finished", f"rrun/{name}")
        assert {conditions(on_nodes, name)["Finished"]["reason"] for name in RUNS} == {"Succeeded"}

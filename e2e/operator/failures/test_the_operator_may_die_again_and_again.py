"""Killed twelve times in a row while it makes one run: the same children, each once, and one attempt."""

from functools import partial

import pytest
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.kinds import KillProcess
from faults.proxy import running
from faults.rules import Rule

WRITES = {"apply", "create", "patch", "update", "delete"}
CHILDREN = (
    "statefulsets,services,rolebindings,networkpolicies,poddisruptionbudgets,"
    "serviceaccounts,configmaps,secrets"
)
EXPECTED = {
    "StatefulSet": 3,
    "Service": 3,
    "RoleBinding": 1,
    "NetworkPolicy": 3,
    "PodDisruptionBudget": 2,
    "ServiceAccount": 3,
    "ConfigMap": 2,
    "Secret": 1,
}


def count_children(kubectl):
    found = kubectl.get(CHILDREN, "-l", "rollout.dev/run=arithmetic")["items"]
    kinds = [one["kind"] for one in found]
    return {kind: kinds.count(kind) for kind in kinds}


def live_through_deaths(kubectl, puppets, tmp_path, num_deaths, performed):
    """Start the operator again and again, each dying at one of its first writes; then one that lives."""
    path, log = tmp_path / "kubeconfig", tmp_path / "log"
    with running(kubectl.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        for number in range(num_deaths):
            with operating(path, find_free_port(), log, wait=False) as operator:
                world = World(kubectl=kubectl, puppets=puppets, operator=operator)
                fault = KillProcess(pid=operator.process.pid, performed=performed)
                rule = Rule(
                    verbs=WRITES, client="rollout-operator", first=1 + number % 3, fault=fault
                )
                proxy.inject(rule)
                eventually(partial(is_over, world), f"neither dead nor done; see {log}")
            proxy.clear()
        with operating(path, find_free_port(), log) as operator:
            world = World(kubectl=kubectl, puppets=puppets, operator=operator)
            world.wait_for("Ready", "True", "Running")
            assert count_children(kubectl) == EXPECTED
            assert world.run()["status"]["attempt"] == 1


def is_over(world):
    if world.operator.process.poll() is not None:
        return True
    return world.condition("Ready").get("status") == "True"


@pytest.mark.slow
@pytest.mark.parametrize("performed", [True, False])
def test_twelve_deaths_in_a_row(bare, puppets, tmp_path, performed):
    bare.apply(build())
    live_through_deaths(bare, puppets, tmp_path, num_deaths=12, performed=performed)


def build():
    from runs import build_run

    return build_run("arithmetic")

"""What a new run costs the API server, and children that depend on what the cluster serves."""

from collections import Counter

import pytest
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.calls import Call
from faults.proxy import running
from runs import build_run

pytestmark = pytest.mark.process

MONITORS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"plural": "podmonitors", "kind": "PodMonitor"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            }
                        },
                    }
                },
            }
        ],
    },
}


def of_the_run(call: Call, namespace: str) -> bool:
    """Whether a call is a cost of the run: the first operator of a cluster also makes keys in its own namespace."""
    return call.namespace == namespace and call.resource != "events"


def test_each_child_is_written_once_and_the_status_when_it_says_more(bare, puppets, tmp_path):
    puppets.keep_back("coordinator", "learner", "actor")
    path = tmp_path / "kubeconfig"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        with operating(path, find_free_port(), tmp_path / "log") as operator:
            proxy.clear()
            bare.apply(build_run())
            eventually(lambda: bare.get("pods")["items"], "no pod was made")
            World(kubectl=bare, puppets=puppets, operator=operator).wait_for(
                "Reconciling", "True", "Unschedulable"
            )
            writes = [one.call for one in proxy.writes() if of_the_run(one.call, bare.namespace)]
    status = [call for call in writes if call.subresource == "status"]
    children = Counter((call.resource, call.name) for call in writes if not call.subresource)
    assert max(children.values()) == 1, children
    assert len(status) <= 3, "it starts, its coordinator has a pod, that pod finds no node"


def test_a_pod_monitor_is_made_only_where_that_kind_exists(bare, puppets, tmp_path):
    bare.apply(MONITORS)
    bare.wait("--for=condition=Established", "crd/podmonitors.monitoring.coreos.com")
    try:
        with operating(bare.kubeconfig, find_free_port(), tmp_path / "log") as operator:
            world = World(kubectl=bare, puppets=puppets, operator=operator)
            world.apply()
            world.wait_for("Ready", "True")
            found = bare.get("podmonitors")["items"]
            assert [one["spec"]["podMetricsEndpoints"][0]["port"] for one in found] == ["api"]
            bare("delete", "podmonitor", found[0]["metadata"]["name"])
            eventually(lambda: bare.get("podmonitors")["items"], "the PodMonitor did not come back")
            bare("delete", "rrun", "arithmetic")
            eventually(
                lambda: not bare.get("podmonitors")["items"], "the PodMonitor outlived its run"
            )
    finally:
        bare("delete", "crd", "podmonitors.monitoring.coreos.com")

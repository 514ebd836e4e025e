"""Two actors, sixty-four, two again, on nodes that are there: nobody else's pod is touched."""

import pytest
from operators import eventually, operating

from cluster.control.ports import find_free_port
from runs import build_run

pytestmark = pytest.mark.control_plane

FEW, MANY = 2, 64
SPEC = {
    "storage": {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}},
    "learner": {"nodes": 2},
    "actors": {"replicas": FEW},
}


def pods(kubectl, *roles):
    """Names and UIDs of the pods of these roles that are ready."""
    found = kubectl.get("pods", "-l", f"rollout.dev/role in ({','.join(roles)})")["items"]
    return {
        (one["metadata"]["name"], one["metadata"]["uid"])
        for one in found
        for said in one["status"].get("conditions", ())
        if (said["type"], said["status"]) == ("Ready", "True")
    }


def test_the_learner_and_the_coordinator_keep_their_pods(on_nodes, tmp_path):
    runtime = {"runtimeRef": {"kind": "ClusterRolloutRuntime", "name": on_nodes.namespace}}
    with operating(on_nodes.kubeconfig, find_free_port(), tmp_path / "log"):
        on_nodes.apply(build_run(spec={**SPEC, **runtime}))
        on_nodes.wait("--for=condition=Ready", "rrun/arithmetic", seconds=180)
        before = pods(on_nodes, "learner", "coordinator")
        assert len(before) == 3
        kept = pods(on_nodes, "actor")
        for wanted in (MANY, FEW):
            on_nodes("scale", "rrun/arithmetic", f"--replicas={wanted}")
            eventually(
                lambda wanted=wanted: len(pods(on_nodes, "actor")) == wanted,
                f"there are not {wanted} actors",
                seconds=180,
                every=0.5,
            )
            assert pods(on_nodes, "learner", "coordinator") == before
        assert pods(on_nodes, "actor") == kept

"""Real Kueue: its own integrations leave a run's children alone, and it may place each of their pods itself."""

import pytest
from kueue_manager import FRAMEWORKS, running
from kueue_objects import API, build_cluster_queue, build_flavor, build_local_queue, spec_of
from operators import operating
from queue_stage import Stage

from cluster.control.ports import find_free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]

ASK_THE_RUN = {"frameworks": FRAMEWORKS, "externalFrameworks": ["RolloutRun.v1alpha1.rollout.dev"]}
TOPOLOGY = {
    "apiVersion": API,
    "kind": "Topology",
    "metadata": {"name": "pools"},
    "spec": {"levels": [{"nodeLabel": "pool"}, {"nodeLabel": "kubernetes.io/hostname"}]},
}


def test_children_stay_alone_where_kueue_manages_everything(local, bare, idle, tmp_path):
    here = {"matchLabels": {"kubernetes.io/metadata.name": bare.namespace}}
    everything = {"manageJobsWithoutQueueName": True, "managedJobsNamespaceSelector": here}
    log = tmp_path / "log"
    with (
        running(local, tmp_path, integrations=ASK_THE_RUN, **everything),
        operating(bare.kubeconfig, find_free_port(), log) as operator,
    ):
        bare.apply(
            build_flavor("reserved", nodeLabels={"pool": "reserved"}),
            build_cluster_queue(bare.namespace, bare.namespace, "reserved", 4),
            build_local_queue(bare.namespace, "default"),
        )
        stage = Stage(kubectl=bare, puppets=idle, operator=operator)
        spec = spec_of(4)
        del spec["queueName"]
        stage.start("arithmetic", spec, **{"kueue.x-k8s.io/queue-name": "default"})
        stage.wait_for("Ready", "True", "Running")
        assert len(stage.workloads()) == 1
        assert not any(one["spec"].get("schedulingGates") for one in stage.pods())
        stage.succeed()
        stage.until(lambda: stage.said("Finished") == ("True", "Succeeded"), "Kueue was not told")
    bare("delete", "clusterqueue", bare.namespace, "--wait=false")


def test_pods_go_where_kueues_topology_puts_them(bare, stage, kueue):
    bare.apply(
        TOPOLOGY,
        build_flavor("placed", nodeLabels={"type": "kwok"}, topologyName="pools"),
        build_cluster_queue(bare.namespace, bare.namespace, "placed", 8),
        build_local_queue(bare.namespace),
    )
    spec = spec_of(4)
    spec["learner"]["annotations"] = {"kueue.x-k8s.io/podset-required-topology": "pool"}
    stage.start("arithmetic", spec)
    stage.wait_for("Ready", "True", "Running")
    given = stage.workload()["status"]["admission"]["podSetAssignments"]
    assert all(one["topologyAssignment"] for one in given)
    selectors = [one["spec"]["nodeSelector"] for one in stage.pods()]
    assert all("kubernetes.io/hostname" in one for one in selectors)
    bare("delete", "clusterqueue", bare.namespace, "--wait=false")

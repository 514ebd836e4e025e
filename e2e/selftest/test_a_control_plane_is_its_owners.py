"""A control plane comes back on its port, meets no other one, and does not outlive a killed owner.

Quick: test_objects_are_read_without_a_process.py restarts one, test_ports_stay_free_until_they_are_used.py keeps two apart.
"""

from dataclasses import astuple

import pytest

from cluster import local
from cluster.instance import everything
from cluster.local import LocalCluster, Shape
from owners import start_and_kill

pytestmark = [pytest.mark.control_plane, pytest.mark.slow, pytest.mark.kit]


def test_a_killed_api_server_comes_back_with_everything(local_cluster: LocalCluster):
    kubectl = local_cluster.kubectl
    kubectl("create", "configmap", "kept", "--from-literal=a=b")

    local_cluster.control_plane.kill_api_server()
    assert kubectl.attempt("get", "configmap", "kept").returncode != 0
    local_cluster.control_plane.start_api_server()

    assert kubectl.get("configmap", "kept")["data"] == {"a": "b"}
    kubectl("delete", "configmap", "kept")


def test_two_clusters_do_not_meet(local_cluster: LocalCluster):
    with local.running(Shape(fake_nodes=0)) as other:
        other.kubectl("create", "configmap", "mine")
        assert local_cluster.kubectl.attempt("get", "configmap", "mine").returncode != 0
        ports = [{*astuple(c.control_plane.ports)} for c in (other, local_cluster)]
    assert ports[0].isdisjoint(ports[1])
    assert local_cluster.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_cluster_dies_with_a_killed_owner_and_is_swept_up(local_cluster: LocalCluster):
    del local_cluster
    left = start_and_kill(real_nodes=0)

    local.sweep()

    assert [process.name for process in left.processes if process.handle()] == []
    assert left.instance.name not in [instance.name for instance in everything()]

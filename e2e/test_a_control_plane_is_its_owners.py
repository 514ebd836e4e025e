"""A control plane comes back on its port, meets no other one, and does not outlive a killed owner."""

import os
import signal
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest

from cluster import local
from cluster.instance import everything, find
from cluster.local import LocalCluster, Shape

pytestmark = pytest.mark.control_plane

OWNER = """
from cluster import local
made = local.up(local.Shape(fake_nodes=0), owned=True)
print(made.instance.name, flush=True)
input()
"""


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
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )
    name = owner.stdout.readline().strip()
    processes = find(name).processes()
    assert all(process.handle() for process in processes.values())

    owner.send_signal(signal.SIGKILL)
    owner.wait()

    local.sweep()
    assert [process.name for process in processes.values() if process.handle()] == []
    assert name not in [instance.name for instance in everything()]

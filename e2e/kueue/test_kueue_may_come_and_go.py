"""Without Kueue a queue is named as the fault, nothing of Kueue is watched; what comes later is taken up by itself."""

import time

import pytest
from kueue_manager import running
from kueue_objects import build_cluster_queue, build_flavor, build_local_queue, spec_of
from operators import operating
from queue_stage import Stage

from cluster.control.ports import find_free_port
from faults.proxy import running as proxied
from runs import build_run
from waiting import Pace

pytestmark = [pytest.mark.process, pytest.mark.slow]

SAID_SECONDS_MAX = 10.0  # short: a promise, stretched on a busy machine


def test_kueue_that_comes_later_is_found(local, bare, idle, tmp_path):
    path = tmp_path / "kubeconfig"
    with proxied(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        with operating(path, find_free_port(), tmp_path / "log") as operator:
            stage = Stage(kubectl=bare, puppets=idle, operator=operator)
            with Pace() as pace:
                began = time.monotonic()
                bare.apply(build_run("arithmetic", spec_of(1)))
                stage.wait_for("Stalled", "True", "KueueNotInstalled")
                said = time.monotonic() - began
            assert said < pace.stretch(SAID_SECONDS_MAX)
            assert "install Kueue" in stage.condition("Stalled")["message"]
            assert watches(proxy) == []
            with running(local, tmp_path):
                bare.apply(
                    build_flavor("reserved", nodeLabels={"pool": "reserved"}),
                    build_cluster_queue(bare.namespace, bare.namespace, "reserved", 4),
                    build_local_queue(bare.namespace),
                )
                stage.wait_for("Ready", "True", "Running")
                assert watches(proxy) != []
                bare("delete", "rolloutrun", "arithmetic", "--wait=false")
                stage.until(lambda: not stage.workloads(), "the Workload stayed")
    bare("delete", "clusterqueue", bare.namespace, "--wait=false")


def watches(proxy):
    return [
        one.call.path
        for one in proxy.records()
        if one.call.resource == "workloads" and one.call.verb in {"list", "watch"}
    ]

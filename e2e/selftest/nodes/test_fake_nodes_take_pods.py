"""Fake nodes run pods by word only, and count GPUs as real ones do."""

import pytest

from cluster.kubectl import Kubectl
from objects import build_pod, build_stateful_set

pytestmark = pytest.mark.control_plane


def test_sixteen_gpus_take_sixteen_of_twenty_pods(fake: Kubectl):
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    template = build_pod("gpu", container={"resources": limits})
    fake.apply(build_stateful_set("gpu", 20, template))

    fake.wait("--for=jsonpath={.status.readyReplicas}=16", "statefulset/gpu")
    pending = fake.get("pods", "--field-selector=status.phase=Pending")["items"]
    assert len(pending) == 4
    reasons = {c["reason"] for pod in pending for c in pod["status"].get("conditions", [])}
    assert reasons <= {"Unschedulable"}

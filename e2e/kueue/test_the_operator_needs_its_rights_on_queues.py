"""With the rights of the table and no other a queued run lives its whole life, and each right on queues is needed."""

from contextlib import suppress

import pytest
from kueue_objects import build_priority, spec_of
from operators import eventually, operating
from queue_stage import Stage
from token_of_the_table import grant

from cluster.control.ports import find_free_port
from faults.proxy import running
from rollout_operator.rbac import RULES

pytestmark = [pytest.mark.process, pytest.mark.slow]

ELSEWHERE = {"kueue.x-k8s.io", "scheduling.k8s.io"}
"""Groups that e2e/operator leaves to this test."""


def test_every_right_on_queues_is_used_and_none_is_missing(bare, idle, kueue, queue, tmp_path):
    path = tmp_path / "kubeconfig"
    queue(devices=4)
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig(token=grant(bare, bare.namespace)))
        namespace = {"ROLLOUT_OPERATOR_NAMESPACE": bare.namespace}
        with operating(path, find_free_port(), tmp_path / "log", **namespace) as operator:
            live(Stage(kubectl=bare, puppets=idle, operator=operator))
        with suppress(AssertionError):  # a watch is known when it has ended
            eventually(lambda: not unused(proxy), "some rights were not used", seconds=20)
        assert unused(proxy) == set()
        assert [one.call.path for one in proxy.records() if one.status == 403] == []


def live(stage):
    """Asked for, asked for otherwise, admitted, evicted, admitted again, finished, gone."""
    pods = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 5}
    stage.kubectl.apply({**pods, "metadata": {"name": "of-pods"}}, build_priority("first", 7))
    label = {"kueue.x-k8s.io/priority-class": "first"}
    stage.start("arithmetic", spec_of(8), **label)
    stage.wait_for("Ready", "False", "Queued")
    fewer = {"learner": {"accelerator": {"className": "h100", "count": 4}}}
    stage.patch({"suspend": True, **fewer})
    stage.patch({"suspend": False})
    stage.wait_for("Ready", "True", "Running")
    other = spec_of(4)
    other["learner"]["priorityClassName"] = "of-pods"
    stage.start("other", other)
    stage.wait_for("Ready", "False", "Queued", name="other")
    stage.kubectl("delete", "rolloutrun", "other", "--wait=false")
    stage.until(lambda: not stage.workload("other"), "the Workload stayed")
    stage.patch({"suspend": True})
    stage.until(lambda: not stage.workload(), "the Workload stayed")
    stage.patch({"suspend": False})
    stage.wait_for("Ready", "True", "Running")
    stage.succeed()
    stage.until(lambda: stage.said("Finished") == ("True", "Succeeded"), "Kueue was not told")


def unused(proxy):
    return granted() - used(proxy.records())


def granted():
    return {
        (resource, verb)
        for rule in RULES
        if rule.group in ELSEWHERE
        for resource in rule.resources
        for verb in rule.verbs
    }


def used(records):
    pairs = set()
    for record in records:
        call = record.call
        name = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
        pairs |= {(name, "patch" if call.verb == "apply" else call.verb)} if name else set()
    return pairs

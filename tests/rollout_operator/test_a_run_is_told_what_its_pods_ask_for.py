"""The coordinator is told what the pods of each role ask for, as they are rendered: what a run costs is counted from it."""

from __future__ import annotations

import pytest
from test_children_are_as_kubernetes_needs_them import DEVICES, RUNTIME
from worlds import SPEC, build_inputs

from rollout_operator.run.attempt import build_children
from rollout_operator.run.render.order import build_order


def requests_of(template):
    """What the containers of a pod ask for that run as long as it does; limits where they ask for nothing."""
    spec = template["spec"]
    lasting = [one for one in spec.get("initContainers", ()) if one.get("restartPolicy")]
    resources = [one.get("resources", {}) for one in (*spec["containers"], *lasting)]
    asked = [{**one.get("limits", {}), **one.get("requests", {})} for one in resources]
    return [one for one in asked if one]


@pytest.mark.parametrize(("spec", "runtime"), [(SPEC, None), (DEVICES, RUNTIME)])
def test_shapes_are_those_of_the_pods(spec, runtime):
    inputs = build_inputs(spec, runtime)
    shapes = build_order(inputs).shapes
    pods = {
        child["metadata"]["labels"]["rollout.dev/role"]: child["spec"]["template"]
        for child in build_children(inputs, "record")
        if child["kind"] == "StatefulSet"
    }

    assert {role: list(shape.requests) for role, shape in shapes.items()} == {
        role: requests_of(template) for role, template in pods.items()
    }
    assert shapes["learner"].pods == inputs.spec.learner.nodes


def placed(selector, **actors):
    spec = {**SPEC, "actors": {**SPEC.get("actors", {}), "nodeSelector": selector, **actors}}
    return build_order(build_inputs(spec)).shapes["actor"]


@pytest.mark.parametrize(
    ("selector", "capacity"),
    [
        ({"karpenter.sh/capacity-type": "spot"}, "Spot"),
        ({"karpenter.sh/capacity-type": "on-demand"}, "OnDemand"),
        ({"karpenter.sh/capacity-type": "reserved"}, None),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "Spot"),
        ({"cloud.google.com/gke-spot": "true"}, "Spot"),
        ({"disk": "fast"}, None),
    ],
)
def test_the_kind_of_capacity_is_what_selectors_say(selector, capacity):
    assert placed(selector).capacity == capacity


def test_the_type_of_node_is_what_selectors_say():
    assert placed({"node.kubernetes.io/instance-type": "g6.xlarge"}).instance_type == "g6.xlarge"
    assert placed({}).instance_type is None


def test_a_classs_nodes_for_what_may_be_taken_away_are_spot():
    shapes = build_order(build_inputs(DEVICES, RUNTIME)).shapes
    assert (shapes["actor"].capacity, shapes["learner"].capacity) == ("Spot", None)

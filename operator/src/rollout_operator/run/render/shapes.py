"""What the pods of each role ask for and where they are placed, told to the coordinator for what a run costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from rollout_api.names import Role
from rollout_api.worker import PodShape
from rollout_operator.run.render.inputs import Inputs, Manifest
from rollout_operator.run.render.pod_settings import build_placement, layers_of
from rollout_operator.run.render.pods import build_containers, build_sidecars

INSTANCE_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
CAPACITIES: Mapping[str, Mapping[str, Literal["OnDemand", "Spot"]]] = {
    "karpenter.sh/capacity-type": {"on-demand": "OnDemand", "spot": "Spot"},
    "eks.amazonaws.com/capacityType": {"ON_DEMAND": "OnDemand", "SPOT": "Spot"},
    "cloud.google.com/gke-spot": {"true": "Spot", "false": "OnDemand"},
    "cloud.google.com/gke-provisioning": {"standard": "OnDemand", "spot": "Spot"},
}
"""Labels of nodes that say whether a node may be taken away, as clouds and Karpenter write them."""


def build_shapes(inputs: Inputs) -> dict[Role, PodShape]:
    """The shape of each role's pods, by what is rendered for them."""
    return {role: build_shape(inputs, role) for role in get_args(Role)}


def build_shape(inputs: Inputs, role: Role) -> PodShape:
    """What one worker of a role is: a learner is as many pods as it has nodes."""
    selector = build_placement(inputs, role).get("nodeSelector", {})
    return PodShape(
        pods=inputs.spec.learner.nodes if role == "learner" else 1,
        requests=tuple(_requests(inputs, role)),
        instance_type=next((selector[one] for one in INSTANCE_TYPES if one in selector), None),
        capacity=_capacity(inputs, role, selector),
    )


def _requests(inputs: Inputs, role: Role) -> Iterator[dict[str, str]]:
    """Of each container that runs as long as the pod: its requests, for what it asks none its limits, as Kubernetes reads them."""
    for container in (*build_containers(inputs, role, []), *build_sidecars(inputs, role)):
        resources: Manifest = container["resources"]
        asked = {**resources.get("limits", {}), **resources.get("requests", {})}
        if asked:
            yield {name: str(amount) for name, amount in asked.items()}


def _capacity(
    inputs: Inputs, role: Role, selector: Mapping[str, str]
) -> Literal["OnDemand", "Spot"] | None:
    """As labels say it; where they do not, what is placed by a class's selector for what may be taken away is Spot."""
    found = (CAPACITIES[label].get(selector[label]) for label in CAPACITIES if label in selector)
    said = next((one for one in found if one is not None), None)
    layers = layers_of(inputs, role)
    preempted = layers.spot and layers.device and layers.device[0].preemptible_node_selector
    return said or ("Spot" if preempted else None)

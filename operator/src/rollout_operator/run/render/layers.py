"""A pod as platform and user say it together, whatever it is for: variables, resources, place, annotations. Pure.

The user wins where both may say; what a queue wants comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_api.base import ApiModel
from rollout_api.v1alpha1.common import EnvVar
from rollout_api.v1alpha1.pods.pods import PodSettings, Toleration
from rollout_api.v1alpha1.runtime import AcceleratorClass, RoleTemplate
from rollout_operator.run.render.inputs import Manifest, Placement

EVICTION_SECONDS = 30
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLayers:
    """``device``: the class of the pod's devices and how many. ``spot``: on capacity that may be taken away."""

    template: RoleTemplate
    user: PodSettings
    device: tuple[AcceleratorClass, int] | None = None
    spot: bool = False
    queued: Placement = field(default_factory=Placement)


def plain(model: ApiModel | None) -> Any:
    """The model as the API server wants it: camelCase, without what is unset or empty."""
    return (
        _prune(model.model_dump(mode="json", exclude_none=True, exclude_unset=True))
        if model is not None
        else None
    )


def _prune(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _prune(inner) for name, inner in value.items() if inner not in ({}, [])}
    return [_prune(item) for item in value] if isinstance(value, list) else value


def merge_env(layers: PodLayers, between: Iterable[EnvVar] = ()) -> list[Manifest]:
    """Variables by name; later sources win: network, platform, ``between``, user."""
    device = layers.device
    network = device[0].network.env if device and device[0].network else ()
    merged: dict[str, Manifest] = {}
    for source in (network, layers.template.env, between, layers.user.env):
        merged |= {item.name: variable_of(item) for item in source}
    return list(merged.values())


def variable_of(item: EnvVar) -> Manifest:
    """One variable, plain or from a Secret."""
    if item.secret is not None:
        return secret_variable(item.name, item.secret.name, item.secret.key)
    return {"name": item.name, "value": item.value or ""}


def secret_variable(name: str, secret: str, key: str) -> Manifest:
    """A variable whose value lies in a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def field_variable(name: str, path: str) -> Manifest:
    """A variable that the kubelet fills from the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def merge_resources(layers: PodLayers, *, devices: bool = True) -> Manifest:
    """Requests and limits of a container, with its devices and fast network."""
    resources: Manifest = plain(layers.user.resources or layers.template.resources) or {}
    device = layers.device if devices else None
    if device is None:
        return resources
    kind, count = device
    extended = {kind.resource_name: str(count)}
    if kind.network is not None:
        extended |= dict(kind.network.resources)
    return {
        "requests": {**resources.get("requests", {}), **extended},
        "limits": {**resources.get("limits", {}), **extended},
    }


def merge_placement(
    layers: PodLayers, *, near: Manifest | None = None, spread: Sequence[Manifest] = ()
) -> Manifest:
    """Where a pod may go: selectors, taints, affinity (``near`` where nobody says another), priority, spread."""
    template, user, device, queued = layers.template, layers.user, layers.device, layers.queued
    on_host = bool(device and device[0].network and device[0].network.host_network)
    selector = {**template.node_selector, **_device_selector(layers), **user.node_selector}
    tolerations = [*template.tolerations, *(device[0].tolerations if device else ())]
    tolerated = tolerations_of([*tolerations, *user.tolerations])
    placement: Manifest = {
        "nodeSelector": {**selector, **queued.node_selector},
        "tolerations": [
            *tolerated,
            *(one for one in queued.tolerations if one not in tolerated),
            *_evictions(),
        ],
        "schedulingGates": [{"name": name} for name in queued.gates],
        "affinity": plain(user.affinity or template.affinity) or near,
        "priorityClassName": user.priority_class_name or template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "topologySpreadConstraints": spread,
        "hostNetwork": on_host,
        # Such a pod asks the node's resolver otherwise, which knows no Service: not the coordinator either.
        "dnsPolicy": "ClusterFirstWithHostNet" if on_host else None,
    }
    return {name: value for name, value in placement.items() if value}


def build_spread(labels: Mapping[str, str]) -> list[Manifest]:
    """Pods of these labels apart from each other, so that one lost node loses few."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def merge_annotations(layers: PodLayers, first: Mapping[str, str] | None = None) -> dict[str, str]:
    """Annotations of a pod."""
    device = layers.device
    network = device[0].network.annotations if device and device[0].network else {}
    return {
        **(first or {}),
        **network,
        **layers.template.annotations,
        **layers.user.annotations,
        **layers.queued.annotations,
    }


def _device_selector(layers: PodLayers) -> Mapping[str, str]:
    if layers.device is None:
        return {}
    kind = layers.device[0]
    return {**kind.node_selector, **(kind.preemptible_node_selector if layers.spot else {})}


def tolerations_of(items: Iterable[Toleration]) -> list[Manifest]:
    """Tolerations as a pod has them."""
    return [{"operator": item.operator, **plain(item)} for item in items]


def _evictions() -> list[Manifest]:
    return [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": EVICTION_SECONDS,
        }
        for key in _UNREACHABLE
    ]

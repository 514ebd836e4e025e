"""What platform and user say about a role's pods, laid over each other: the user wins where both may."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollout_api import names
from rollout_api.base import ApiModel
from rollout_api.credentials import COORDINATOR_SECRETS
from rollout_api.v1alpha1.common import EnvRole, EnvVar, RunEnvVar
from rollout_api.v1alpha1.pods import PodSettings, Toleration
from rollout_operator.run.render.inputs import ROWS, Inputs, Manifest

EVICTION_SECONDS = 30
_GRACE_SECONDS = {"coordinator": 120, "learner": 60, "actor": 60}
_ENV_ROLES: Mapping[names.Role, EnvRole] = {
    "coordinator": "Coordinator",
    "learner": "Learner",
    "actor": "Actor",
}
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NO_IDENTITY = "eks.amazonaws.com/skip-containers"
"""Containers that the webhook of Amazon EKS gives no token of the pod's cloud identity."""
_KEEP_LEARNERS = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}


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


def user_settings(inputs: Inputs, role: names.Role) -> PodSettings:
    """What the user says; nothing about the coordinator."""
    by_role: Mapping[str, PodSettings] = {
        "learner": inputs.spec.learner,
        "actor": inputs.spec.actors,
    }
    return by_role.get(role, PodSettings())


def plan_grace_seconds(inputs: Inputs, role: names.Role) -> int:
    """From SIGTERM to the kill: the coordinator outlasts the workers."""
    wanted = inputs.template(role).termination_grace_seconds
    return _GRACE_SECONDS[role] if wanted is None else wanted


def build_env(inputs: Inputs, role: names.Role) -> list[Manifest]:
    """Variables of the role's main container, by name; later sources win."""
    template, user = inputs.template(role), user_settings(inputs, role)
    device = inputs.accelerator(role)
    network = device[0].network.env if device and device[0].network else ()
    merged: dict[str, Manifest] = {}
    for source in (network, template.env, _run_env(inputs, role), user.env):
        merged |= {item.name: variable_of(item) for item in source}
    return list(merged.values())


def _run_env(inputs: Inputs, role: names.Role) -> Iterator[RunEnvVar]:
    """What the author gives to a role; of that the coordinator's own container gets what our code needs, by name."""
    for item in inputs.spec.env:
        mine = role != "coordinator" or (item.secret and item.name in COORDINATOR_SECRETS)
        if mine and item.goes_to(_ENV_ROLES[role]):
            yield item


def build_rows_env(inputs: Inputs) -> list[Manifest]:
    """Variables of what runs the author's data code: the author's, and the platform's plain ones."""
    merged = {
        "HOME": {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a volume of the pod
        "USER": {"name": "USER", "value": "rollout"},
        "ROLLOUT_CACHE": {"name": "ROLLOUT_CACHE", "value": "/tmp/rollout"},  # noqa: S108
        "HF_HOME": {"name": "HF_HOME", "value": "/tmp/huggingface"},  # noqa: S108
    }
    plain = [item for item in inputs.template("coordinator").env if item.secret is None]
    given = [item for item in inputs.spec.env if item.goes_to("Coordinator")]
    for item in (*plain, *given):
        merged[item.name] = variable_of(item)
    return list(merged.values())


def variable_of(item: EnvVar) -> Manifest:
    """A variable as a container has it."""
    if item.secret is not None:
        return secret_variable(item.name, item.secret.name, item.secret.key)
    return {"name": item.name, "value": item.value or ""}


def secret_variable(name: str, secret: str, key: str) -> Manifest:
    """A variable whose value lies in a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def field_variable(name: str, path: str) -> Manifest:
    """A variable that the kubelet fills from the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def build_resources(inputs: Inputs, role: names.Role, *, devices: bool = True) -> Manifest:
    """Requests and limits of the main container, with its devices and fast network."""
    chosen = user_settings(inputs, role).resources or inputs.template(role).resources
    resources: Manifest = plain(chosen) or {}
    device = inputs.accelerator(role) if devices else None
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


def build_placement(inputs: Inputs, role: names.Role) -> Manifest:
    """Where the pods may go: selectors, taints, affinity, priority, spread."""
    template, user = inputs.template(role), user_settings(inputs, role)
    device = inputs.accelerator(role)
    on_host = bool(device and device[0].network and device[0].network.host_network)
    queued = inputs.placement(role)
    selector = {**template.node_selector, **_device_selector(inputs, role), **user.node_selector}
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
        "affinity": plain(user.affinity or template.affinity) or _together(inputs, role),
        "priorityClassName": user.priority_class_name or template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "topologySpreadConstraints": _spread(inputs, role),
        "hostNetwork": on_host,
        # Such a pod asks the node's resolver otherwise, which knows no Service: not the coordinator either.
        "dnsPolicy": "ClusterFirstWithHostNet" if on_host else None,
    }
    return {name: value for name, value in placement.items() if value}


def _device_selector(inputs: Inputs, role: names.Role) -> Mapping[str, str]:
    device = inputs.accelerator(role)
    if device is None:
        return {}
    spot = role == "actor" and inputs.spec.actors.preemptible
    extra = device[0].preemptible_node_selector if spot else {}
    return {**device[0].node_selector, **extra}


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


def _together(inputs: Inputs, role: names.Role) -> Manifest | None:
    """Learner ranks near each other, where the platform names a topology."""
    device = inputs.accelerator(role)
    if role != "learner" or device is None or device[0].topology_key is None:
        return None
    labels = names.worker_labels(inputs.name, inputs.uid, role)
    term = {
        "labelSelector": {"matchLabels": labels},
        "topologyKey": device[0].topology_key,
    }
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


def _spread(inputs: Inputs, role: names.Role) -> Sequence[Manifest]:
    """Actors apart from each other, so that one lost node loses few."""
    if role != "actor":
        return ()
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.worker_labels(inputs.name, inputs.uid, role)},
        }
    ]


def build_annotations(inputs: Inputs, role: names.Role) -> dict[str, str]:
    """Annotations of the pods; learners are not to be moved for the sake of bin packing."""
    device = inputs.accelerator(role)
    network = device[0].network.annotations if device and device[0].network else {}
    keep = _KEEP_LEARNERS if role == "learner" else {}
    found = {
        **keep,
        **network,
        **inputs.template(role).annotations,
        **user_settings(inputs, role).annotations,
        **inputs.placement(role).annotations,
    }
    if role == "coordinator" and inputs.spec.brings_data_code:
        skipped = [one for one in (found.get(_NO_IDENTITY, ""), ROWS) if one]
        found[_NO_IDENTITY] = ",".join(skipped)
    return found


def build_labels(inputs: Inputs, role: names.Role) -> dict[str, str]:
    """Labels of the pods; ours cannot be overwritten."""
    return {
        **inputs.template(role).labels,
        **user_settings(inputs, role).labels,
        **inputs.placement(role).labels,
        **names.common_labels(inputs.name, role),
        **names.worker_labels(inputs.name, inputs.uid, role),
        names.LABEL_ATTEMPT: str(inputs.attempt),
    }


def shared_memory(inputs: Inputs, role: names.Role) -> str | None:
    """Size of /dev/shm; None is the node's own bound."""
    return user_settings(inputs, role).shared_memory or inputs.template(role).shared_memory

"""What platform and user say about the pods of a run's role, laid over each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollout_api import names
from rollout_api.checks.environment.plugins import find_containers
from rollout_api.fields.credentials import COORDINATOR_SECRETS
from rollout_api.v1alpha1.common import EnvRole, RunEnvVar
from rollout_api.v1alpha1.pods.pods import PodSettings
from rollout_operator.run.render.inputs import PLUGIN, ROWS, Inputs, Manifest
from rollout_operator.run.render.layers import (
    PodLayers,
    build_spread,
    merge_annotations,
    merge_env,
    merge_placement,
    merge_resources,
    variable_of,
)

_GRACE_SECONDS = {"coordinator": 120, "learner": 60, "actor": 60}
_ENV_ROLES: Mapping[names.Role, EnvRole] = {
    "coordinator": "Coordinator",
    "learner": "Learner",
    "actor": "Actor",
}
_NO_IDENTITY = "eks.amazonaws.com/skip-containers"
"""Containers that the webhook of Amazon EKS gives no token of the pod's cloud identity."""
_KEEP_LEARNERS = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}


def user_settings(inputs: Inputs, role: names.Role) -> PodSettings:
    """What the user says: nothing about the coordinator, but of a service, which trains in its place."""
    by_role: Mapping[str, PodSettings] = {
        "learner": inputs.spec.learner,
        "actor": inputs.spec.actors,
        **({"coordinator": inputs.spec.learner} if inputs.spec.serve is not None else {}),
    }
    return by_role.get(role, PodSettings())


def layers_of(inputs: Inputs, role: names.Role) -> PodLayers:
    """All that is said about a role's pods."""
    return PodLayers(
        template=inputs.template(role),
        user=user_settings(inputs, role),
        device=inputs.accelerator(role),
        spot=role == "actor" and inputs.spec.actors.preemptible,
        queued=inputs.placement(role),
    )


def plan_grace_seconds(inputs: Inputs, role: names.Role) -> int:
    """From SIGTERM to the kill: the coordinator outlasts the workers."""
    wanted = inputs.template(role).termination_grace_seconds
    return _GRACE_SECONDS[role] if wanted is None else wanted


def build_env(inputs: Inputs, role: names.Role) -> list[Manifest]:
    """Variables of the role's main container, by name; later sources win."""
    return merge_env(layers_of(inputs, role), _run_env(inputs, role))


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
        "ROLLOUT_PLACED_FILES": {
            "name": "ROLLOUT_PLACED_FILES",
            "value": f"{inputs.cache_root}/fetched",
        },
    }
    plain = [item for item in inputs.template("coordinator").env if item.secret is None]
    given = [item for item in inputs.spec.env if item.goes_to("Coordinator")]
    for item in (*plain, *given):
        merged[item.name] = variable_of(item)
    return list(merged.values())


def build_resources(inputs: Inputs, role: names.Role, *, devices: bool = True) -> Manifest:
    """Requests and limits of the main container, with its devices and fast network."""
    return merge_resources(layers_of(inputs, role), devices=devices)


def build_placement(inputs: Inputs, role: names.Role) -> Manifest:
    """Where the pods may go: selectors, taints, affinity, priority, spread."""
    labels = names.worker_labels(inputs.name, inputs.uid, role)
    spread = build_spread(labels) if role == "actor" else ()
    return merge_placement(layers_of(inputs, role), near=_together(inputs, role), spread=spread)


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


def build_annotations(inputs: Inputs, role: names.Role) -> dict[str, str]:
    """Annotations of the pods; learners are not to be moved for the sake of bin packing."""
    keep = _KEEP_LEARNERS if role == "learner" else {}
    found = merge_annotations(layers_of(inputs, role), keep)
    if strangers := _strangers(inputs, role):
        skipped = [one for one in (found.get(_NO_IDENTITY, ""), *strangers) if one]
        found[_NO_IDENTITY] = ",".join(skipped)
    return found


def _strangers(inputs: Inputs, role: names.Role) -> list[str]:
    """Containers beside the role's own that have no identity of ours."""
    if role == "coordinator":
        return [ROWS] if inputs.spec.brings_data_code else []
    plugins = find_containers(inputs.spec) if role == "actor" else ()
    return [f"{PLUGIN}{one.label}" for one in plugins]


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

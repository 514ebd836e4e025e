"""One Job in a snapshot's namespace, and the service account of its pod: as the pods of runs are, with what a coordinator has.

The pod reaches the store as a run's coordinator does: by the runtime's variables, volumes and identity. The operator has
none of these. The pod has no token of the cluster, and lives no longer than the errand may take.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollout_api import names
from rollout_api.v1alpha1.runtime import RoleTemplate, RuntimeSpec
from rollout_operator.jobs.render import build_one_pod_job, build_scratch
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Manifest, Platform
from rollout_operator.run.render.layers import plain, tolerations_of, variable_of
from rollout_operator.run.render.pods import (
    CONTAINED,
    SIDE_RESOURCES,
    identity_env,
    image_of,
    pull_policy_of,
    security_of,
)
from rollout_operator.run.render.security import account_of
from rollout_operator.run.render.volumes import Mount, further

SCRATCH = f"{contract.HOME_FOLDER}/scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a pod is sent for. ``job`` is the name of Job and account, ``kind`` of the container.

    ``name``, ``namespace`` and ``uid`` are those of the RolloutSnapshot. ``env`` and ``mounts`` are laid over what the platform gives.
    """

    kind: str
    job: str
    name: str
    namespace: str
    uid: str
    runtime: RuntimeSpec
    platform: Platform
    command: list[str]
    seconds: int
    env: list[Manifest] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)

    @property
    def template(self) -> RoleTemplate:
        """What the platform sets on coordinators, which is what reaches the store."""
        roles = self.runtime.roles
        return (roles.coordinator if roles is not None else None) or RoleTemplate()

    @property
    def account(self) -> str:
        """The service account of the pod."""
        return self.template.service_account_name or self.job


def as_text(order: str) -> str:
    """An order in a variable. A kubelet puts other variables in for $(NAME), and a place is a tenant's word."""
    return order.replace("$", "\\u0024")


def build_account(errand: Errand) -> Manifest | None:
    """The pod's own service account, with the cloud identity of a coordinator; None where the platform names one."""
    return account_of(_meta(errand), errand.template, errand.namespace)


def build_job(errand: Errand) -> Manifest:
    """The Job."""
    template = {"metadata": _pod_meta(errand), "spec": _pod(errand)}
    return build_one_pod_job(_meta(errand), template, errand.seconds)


def _meta(errand: Errand) -> Manifest:
    owner = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutSnapshot",
        "name": errand.name,
        "uid": errand.uid,
        "controller": True,
    }
    return {
        "name": errand.job,
        "namespace": errand.namespace,
        "labels": _labels(errand),
        "ownerReferences": [owner],
    }


def _labels(errand: Errand) -> dict[str, str]:
    return {
        names.LABEL_NAME: "rollout",
        names.LABEL_COMPONENT: errand.kind,
        names.LABEL_PART_OF: "rollout",
        names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
    }


def _pod_meta(errand: Errand) -> Manifest:
    template = errand.template
    meta: Manifest = {"labels": {**template.labels, **_labels(errand)}}
    if template.annotations:
        meta["annotations"] = dict(template.annotations)
    return meta


def _pod(errand: Errand) -> Manifest:
    template, images = errand.template, errand.runtime.images
    mounts = _mounts(errand)
    placed = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": tolerations_of(template.tolerations),
        "affinity": plain(template.affinity),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "imagePullSecrets": [{"name": one.name} for one in images.pull_secrets] if images else [],
    }
    return {
        "restartPolicy": "Never",
        "serviceAccountName": errand.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security_of(template),
        "containers": [_container(errand, mounts)],
        "volumes": [mount.volume() for mount in mounts],
        **{name: value for name, value in placed.items() if value},
    }


def _container(errand: Errand, mounts: list[Mount]) -> Manifest:
    return {
        "name": errand.kind,
        "image": image_of(errand.runtime, errand.platform),
        **pull_policy_of(errand.runtime),
        "command": errand.command,
        "env": _env(errand),
        "resources": plain(errand.template.resources) or SIDE_RESOURCES,
        "securityContext": CONTAINED,
        "volumeMounts": [mount.mount() for mount in mounts],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _env(errand: Errand) -> list[Manifest]:
    """The platform's variables first: ours are not theirs to change."""
    ours = [*identity_env(), {"name": "ROLLOUT_SCRATCH", "value": SCRATCH}, *errand.env]
    merged = {item.name: variable_of(item) for item in errand.template.env}
    return list({**merged, **{one["name"]: one for one in ours}}.values())


def _mounts(errand: Errand) -> list[Mount]:
    return [
        *build_scratch(),
        *map(further, errand.template.volumes),
        *errand.mounts,
    ]

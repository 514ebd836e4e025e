"""StatefulSets and headless Services of the three roles."""

from __future__ import annotations

from rollout_api import names
from rollout_api.names import Role
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Inputs, Manifest
from rollout_operator.run.render.pods import build_template
from rollout_operator.run.render.volumes import claim_template_name

LEDGER_SIZE = "10Gi"


def build_roles(inputs: Inputs) -> tuple[Role, ...]:
    """The roles that a run needs."""
    roles: tuple[Role, ...] = ("coordinator",)
    if inputs.spec.train is not None:
        roles += ("learner",)
    return (*roles, "actor") if inputs.spec.needs_actors else roles


def wanted_replicas(inputs: Inputs, role: Role) -> int:
    """Pods of a role when everything runs."""
    counts = {"learner": inputs.spec.learner.nodes, "actor": inputs.spec.actors.replicas}
    return counts.get(role, 1)


def build_stateful_set(inputs: Inputs, role: Role, configuration: str) -> Manifest:
    """A role's StatefulSet, with no pods yet: replicas are live."""
    name = names.workload_name(inputs.name, role)
    spec: Manifest = {
        "replicas": 0,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete" if role == "learner" else "RollingUpdate"},
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": names.worker_labels(inputs.name, inputs.uid, role)},
        "template": build_template(inputs, role, configuration),
    }
    if role == "coordinator" and inputs.uses_sqlite:
        spec["volumeClaimTemplates"] = [_claim(inputs)]
        spec["persistentVolumeClaimRetentionPolicy"] = {
            "whenDeleted": _retention(inputs),
            "whenScaled": "Retain",
        }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": inputs.meta(name, role),
        "spec": spec,
    }


def _retention(inputs: Inputs) -> str:
    storage = inputs.spec.storage
    return storage.ledger.deletion_policy if storage and storage.ledger else "Retain"


def _claim(inputs: Inputs) -> Manifest:
    ledger = inputs.spec.storage.ledger if inputs.spec.storage else None
    size = ledger.sqlite.size if ledger and ledger.sqlite else LEDGER_SIZE
    spec: Manifest = {
        "accessModes": [inputs.access_mode],
        "resources": {"requests": {"storage": size}},
        "volumeMode": "Filesystem",
    }
    if inputs.storage_class is not None:
        spec["storageClassName"] = inputs.storage_class
    labels = {names.LABEL_RUN: inputs.name, names.LABEL_RUN_UID: inputs.uid}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_template_name(inputs.uid), "labels": labels},
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def build_service(inputs: Inputs, role: Role) -> Manifest:
    """The headless Service that gives a role's pods their names."""
    name = names.workload_name(inputs.name, role)
    spec: Manifest = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.worker_labels(inputs.name, inputs.uid, role),
    }
    if role == "coordinator":
        spec["ports"] = [
            {"name": "api", "port": contract.PORT, "protocol": "TCP", "targetPort": "api"}
        ]
    if role == "coordinator" and inputs.spec.serve is not None:
        port = contract.SERVICE_PORT
        spec["ports"] += [{"name": "train", "port": port, "protocol": "TCP", "targetPort": "train"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": inputs.meta(name, role),
        "spec": spec,
    }

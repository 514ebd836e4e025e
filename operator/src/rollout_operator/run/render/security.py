"""Who a run's pods are, what they may do, who may reach them, and how many may be disturbed."""

from __future__ import annotations

from rollout_api import names
from rollout_api.names import Role
from rollout_api.places import named_for
from rollout_api.v1alpha1.runtime import RoleTemplate
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Inputs, Manifest

ACTORS_DISTURBED = "50%"


def build_account(inputs: Inputs, role: Role) -> Manifest | None:
    """The role's own service account; None where the platform names one."""
    meta = inputs.meta(names.service_account_name(inputs.name, role), role)
    return account_of(meta, inputs.template(role), inputs.namespace)


def account_of(meta: Manifest, template: RoleTemplate, namespace: str) -> Manifest | None:
    """The service account of pods, with the platform's annotations on it; None where the platform names one."""
    if template.service_account_name is not None:
        return None
    identity = {
        key: named_for(value, namespace)
        for key, value in template.service_account_annotations.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**meta, "annotations": {**meta.get("annotations", {}), **identity}},
        "automountServiceAccountToken": False,
    }


def build_role_binding(inputs: Inputs) -> Manifest:
    """The coordinator may patch statuses of runs; an admission policy holds it to its own run's progress."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": inputs.meta(names.progress_name(inputs.name), "coordinator"),
        "roleRef": inputs.platform.coordinator_role.document(),
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": inputs.account("coordinator"),
                "namespace": inputs.namespace,
            }
        ],
    }


def build_network_policy(inputs: Inputs, role: Role) -> Manifest:
    """Ingress by role: workers, operator and metrics to the coordinator, ranks to ranks, else nobody."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": inputs.meta(names.workload_name(inputs.name, role), role),
        "spec": {
            "podSelector": {"matchLabels": names.worker_labels(inputs.name, inputs.uid, role)},
            "policyTypes": ["Ingress"],
            **_ingress(inputs, role),
        },
    }


def _ingress(inputs: Inputs, role: Role) -> Manifest:
    if role == "actor":
        return {}
    if role == "learner":
        peers = {"matchLabels": names.worker_labels(inputs.name, inputs.uid, role)}
        return {"ingress": [{"from": [{"podSelector": peers}]}]}
    own = {"podSelector": {"matchLabels": {names.LABEL_RUN_UID: inputs.uid}}}
    operator = {
        "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": inputs.platform.operator_namespace}
        }
    }
    metrics = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {names.LABEL_NAME: "prometheus"}},
    }
    ports = [{"port": contract.PORT, "protocol": "TCP"}]
    rules: list[Manifest] = [{"from": [own, operator, metrics], "ports": ports}]
    if inputs.spec.serve is not None:
        # Whoever has a key may come from anywhere, as to the servers of an endpoint.
        rules.append({"ports": [{"port": contract.SERVICE_PORT, "protocol": "TCP"}]})
    return {"ingress": rules}


def build_disruption_budget(inputs: Inputs, role: Role) -> Manifest:
    """Actors may go by halves; the learner not at all, until its snapshot is durable (then no budget)."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": inputs.meta(names.workload_name(inputs.name, role), role),
        "spec": {
            "maxUnavailable": 0 if role == "learner" else ACTORS_DISTURBED,
            "selector": {"matchLabels": names.worker_labels(inputs.name, inputs.uid, role)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def build_pod_monitor(inputs: Inputs) -> Manifest:
    """Where Prometheus finds the coordinator's metrics."""
    labels = names.worker_labels(inputs.name, inputs.uid, "coordinator")
    secret = {"name": names.certificate_name(inputs.name), "key": contract.AUTHORITY}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": inputs.meta(names.monitor_name(inputs.name), "coordinator"),
        "spec": {
            "selector": {"matchLabels": labels},
            "podMetricsEndpoints": [
                {
                    "port": "api",
                    "path": "/metrics",
                    "scheme": "https",
                    "tlsConfig": {
                        "ca": {"secret": secret},
                        "serverName": names.workload_name(inputs.name, "coordinator"),
                    },
                }
            ],
        },
    }

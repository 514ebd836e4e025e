"""What stands around the servers of an endpoint: Deployments, the address, the account, who may reach them, how many may go."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_api import names
from rollout_operator.endpoint.inputs import (
    LIVE_KEY,
    PORT,
    SERVICE_PORT,
    TEMPLATE_VERSION,
    TLS_PORT,
    TLS_SERVICE_PORT,
    Manifest,
    ServerInputs,
)
from rollout_operator.endpoint.model import ServedLive
from rollout_operator.endpoint.render.pods import build_template
from rollout_operator.kube.managed_fields import digest_of
from rollout_operator.run.render.security import account_of

DISTURBED = "25%"
"""Of the servers; of fewer than five, one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionTemplate:
    """What the servers of a revision are made of; ``name`` says its digest."""

    name: str
    template: Manifest


def build_revision(inputs: ServerInputs) -> RevisionTemplate:
    """The revision that an endpoint's spec comes to on its runtime."""
    template = build_template(inputs)
    name = names.revision_name(inputs.name, digest_of([TEMPLATE_VERSION, template]))
    labels = {**template["metadata"]["labels"], names.LABEL_REVISION: name}
    meta = {**template["metadata"], "labels": labels}
    return RevisionTemplate(name=name, template={**template, "metadata": meta})


def build_deployment(inputs: ServerInputs, revision: RevisionTemplate, replicas: int) -> Manifest:
    """The servers of a revision."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": inputs.meta(revision.name),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": inputs.spec.promotion.progress_deadline_seconds,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "selector": {"matchLabels": {**inputs.selector, names.LABEL_REVISION: revision.name}},
            "template": revision.template,
        },
    }


def build_service(inputs: ServerInputs, revision: str, *, tls: bool) -> Manifest:
    """The address, and which revision answers there. ``tls``: whether its servers speak that."""
    number = TLS_SERVICE_PORT if tls else SERVICE_PORT
    port = {
        "name": names.PORT_CLIENTS,
        "port": number,
        "protocol": "TCP",
        "targetPort": names.PORT_CLIENTS,
    }
    return _build_address(inputs, names.server_name(inputs.name), revision, {"ports": [port]})


def build_awake(inputs: ServerInputs, revision: str) -> Manifest:
    """The address of the servers that requests are held for."""
    port = {
        "name": names.PORT_CLIENTS,
        "port": SERVICE_PORT,
        "protocol": "TCP",
        "targetPort": names.PORT_CLIENTS,
    }
    return _build_address(inputs, names.awake_name(inputs.name), revision, {"ports": [port]})


def build_candidate(inputs: ServerInputs, revision: str) -> Manifest:
    """The pods of a revision that may not serve yet, by name: for those who measure it, and for sessions that are sent on."""
    return _build_pods_address(inputs, names.candidate_name(inputs.name), revision)


def build_baseline(inputs: ServerInputs, revision: str) -> Manifest:
    """The pods of what serves, by name: for whoever watches a candidate beside them."""
    return _build_pods_address(inputs, names.baseline_name(inputs.name), revision)


def _build_pods_address(inputs: ServerInputs, name: str, revision: str) -> Manifest:
    port = {"name": names.PORT_CLIENTS, "port": PORT, "protocol": "TCP", "targetPort": PORT}
    return _build_address(inputs, name, revision, {"clusterIP": "None", "ports": [port]})


def _build_address(inputs: ServerInputs, name: str, revision: str, how: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": inputs.meta(name),
        "spec": {
            "type": "ClusterIP",
            "selector": {**inputs.selector, names.LABEL_REVISION: revision},
            **how,
        },
    }


def build_live(inputs: ServerInputs, live: ServedLive) -> Manifest:
    """What servers are told of the run that they follow: which weights are the newest, by digest."""
    text = live.version.model_dump_json(by_alias=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": inputs.meta(names.live_name(inputs.name)),
        "data": {LIVE_KEY: text},
    }


def build_surroundings(inputs: ServerInputs) -> list[Manifest]:
    """What does not change from one revision to the next."""
    name = names.server_name(inputs.name)
    found = [_build_policy(inputs, name), _build_budget(inputs, name)]
    account = account_of(inputs.meta(name), inputs.template, inputs.namespace)
    return [account, *found] if account is not None else found


def _build_policy(inputs: ServerInputs, name: str) -> Manifest:
    """Whoever has a key may come from anywhere; where none is asked for, or without TLS beside it, pods of the namespace only."""
    ports = (PORT,) if inputs.spec.tls is None else (TLS_PORT, PORT)
    rules: list[Manifest] = [{"ports": [{"port": one, "protocol": "TCP"}]} for one in ports]
    for place, rule in enumerate(rules):
        if place or not inputs.spec.api_keys:
            rule["from"] = [{"podSelector": {}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": inputs.meta(name),
        "spec": {
            "podSelector": {"matchLabels": inputs.selector},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }


def _build_budget(inputs: ServerInputs, name: str) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": inputs.meta(name),
        "spec": {
            "maxUnavailable": DISTURBED,
            "selector": {"matchLabels": inputs.selector},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }

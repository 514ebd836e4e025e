"""What the chart makes of the values that its tests try, by a name for each."""

from typing import Any

import charts

CONSOLE: dict[str, Any] = {
    "enabled": True,
    "tlsSecretName": "console-tls",
    "image": "rollout/worker:1",
    "clients": {"matchLabels": {"name": "ingress"}},
}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "commonLabels": {"team": "ml"},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "annotations": {"folder": "rollout"}},
        "imagePullSecrets": [{"name": "registry"}],
        "images": {"worker": "rollout/worker:1", "vllm": "vllm:1"},
        "log": {"level": "Debug", "format": "Json"},
        "identity": {"runAsUser": 1_000_650_000, "fsGroup": 1_000_650_000},
        "webhook": {
            "port": 10_250,
            "files": [
                {"name": "proxy", "mountPath": "/etc/proxy", "secret": {"secretName": "proxy"}}
            ],
        },
        "operator": {
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "podAnnotations": {"a": "b"},
            "podLabels": {"c": "d"},
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["proxy.internal"]}],
            "files": [{"name": "ca", "mountPath": "/etc/ca", "configMap": {"name": "company-ca"}}],
        },
        "networkPolicy": {"scrapers": {"matchLabels": {"name": "monitoring"}}},
    },
    "cert-manager": {"webhook": {"certificates": {"mode": "CertManager"}}},
    "no webhook": {"webhook": {"enabled": False}},
    "one replica": {"operator": {"replicas": 1}, "webhook": {"replicas": 1}},
    "namespaced": {"namespaces": ["research", "teaching"]},
    "console": {"console": CONSOLE},
    "namespaced console": {"console": CONSOLE, "namespaces": ["research", "teaching"]},
    "one chart": {"crds": {"enabled": True}},
}


def rendered(mode: str) -> list[dict[str, Any]]:
    return charts.objects(charts.render(values=MODES[mode]))


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] in kinds]


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    deployments = of_kind(objects, "Deployment")
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in deployments}

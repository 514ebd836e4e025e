"""Objects of Kueue that tests apply, and the runs that use them."""

from typing import Any

API = "kueue.x-k8s.io/v1beta2"
QUEUE = "gpus"
SPOT = {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}


def build_flavor(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def build_cluster_queue(name: str, namespace: str, flavor: str, devices: int) -> dict[str, Any]:
    """One flavor, so many devices, for one namespace; who has priority takes from who has less."""
    quotas = [
        {"name": "cpu", "nominalQuota": "100"},
        {"name": "memory", "nominalQuota": "1000Gi"},
        {"name": "nvidia.com/gpu", "nominalQuota": str(devices)},
    ]
    group = {
        "coveredResources": [one["name"] for one in quotas],
        "flavors": [{"name": flavor, "resources": quotas}],
    }
    label = {"kubernetes.io/metadata.name": namespace}
    return {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {"matchLabels": label},
            "queueingStrategy": "BestEffortFIFO",
            "resourceGroups": [group],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        },
    }


def build_local_queue(cluster_queue: str, name: str = QUEUE) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": name},
        "spec": {"clusterQueue": cluster_queue},
    }


def build_priority(name: str, value: int) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def spec_of(devices: int, **spec: Any) -> dict[str, Any]:
    """A run of one learner with so many devices, and one actor without."""
    learner = {"accelerator": {"className": "h100", "count": devices}, "processesPerNode": 1}
    return {"queueName": QUEUE, "learner": learner, "actors": {"replicas": 1}, **spec}

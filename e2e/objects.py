"""Kubernetes objects that tests apply."""

from cluster.nodes import images


def build_pod(name: str, *command: str, **spec: object) -> dict:
    """A busybox pod that ends a second after it is told to.

    With no grace at all a pod on a silent node would be deleted from the API while it still runs.
    """
    container = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": list(command or ("sleep", "3600")),
    }
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def build_service(name: str, app: str, port: int, *, headless: bool = False) -> dict:
    """A Service for the pods with the label `app`."""
    spec = {"selector": {"app": app}, "ports": [{"port": port, "targetPort": port}]}
    if headless:
        spec["clusterIP"] = "None"
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def build_stateful_set(name: str, replicas: int, template: dict, **spec: object) -> dict:
    """A StatefulSet of a pod's spec, all replicas at once."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
            **spec,
        },
    }

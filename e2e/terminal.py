"""States of runs and pods after which waiting on is vain: no registry of a test cluster will have an image later, no spec mends itself. Pure."""

from collections.abc import Iterable
from typing import Any

IMAGE_REASONS = frozenset(
    {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
)
STALLED_REASONS = frozenset({"ImagePullFailed", "InvalidSpec"})


def why_of_run(status: dict[str, Any]) -> str:
    """What the run's operator says it cannot get over; empty while it may, and of a run that has ended."""
    conditions = status.get("conditions", ())
    if any((one["type"], one["status"]) == ("Finished", "True") for one in conditions):
        return ""
    for one in conditions:
        if (one["type"], one["status"]) == ("Stalled", "True") and one["reason"] in STALLED_REASONS:
            return f"Stalled={one['reason']}: {one['message']}"
    return ""


def why_of_pods(pods: Iterable[dict[str, Any]]) -> str:
    """Which container has no image, and where; empty where all have one."""
    for pod in pods:
        status = pod.get("status", {})
        for one in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
            waiting = one.get("state", {}).get("waiting", {})
            if waiting.get("reason") in IMAGE_REASONS:
                node = pod["spec"].get("nodeName", "no node")
                where = f"{pod['metadata']['name']} on {node}, container {one['name']}"
                return f"{where}: {waiting['reason']}: {waiting.get('message', '')}"
    return ""

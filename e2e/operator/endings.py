"""What a run has come to, without what differs from one run to the next: for comparing ends."""

import json
import re
from typing import Any

from stage import World

CHILDREN = (
    "statefulsets,services,serviceaccounts,rolebindings,networkpolicies,poddisruptionbudgets,"
    "configmaps,secrets,persistentvolumeclaims,pods"
)
CHANGING = {
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "status",
    "clusterIP", "clusterIPs", "lastTransitionTime", "startTime", "completionTime", "activeSeconds",
    "rollout.dev/applied", "rollout.dev/not-after", "rollout.dev/signature", "controller-revision-hash", "generateName",
    "binaryData", "kubectl.kubernetes.io/last-applied-configuration", "selfLink", "data", "nodeName",
}  # fmt: skip
"""Named by the server, by the clock, or by the run's UID."""


def end_of(world: World, run: str) -> dict[str, Any]:
    """Children, status and events of a run, comparable with those of any other run."""
    live = world.run(run)
    found = world.kubectl.get(CHILDREN, "-l", f"rollout.dev/run={run}")["items"]
    children = {f"{one['kind']}/{one['metadata']['name']}": settle(one) for one in found}
    status = live.get("status", {})
    plain = {
        "children": children,
        "files": {place_of(one): sorted(one["data"]) for one in found if "data" in one},
        "status": settle({k: v for k, v in status.items() if k not in ("progress", "conditions")}),
        "conditions": conditions_of(status),
        "events": events_of(world, live["metadata"]["uid"]),
    }
    text = json.dumps(plain, sort_keys=True)
    uid = live["metadata"]["uid"]
    text = text.replace(uid, "UID").replace(f"-{uid[:8]}", "-UID")
    return json.loads(re.sub(rf"{run}-[0-9a-f]{{10,}}", "RECORD", text).replace(run, "RUN"))


def place_of(live: dict[str, Any]) -> str:
    return f"{live['kind']}/{live['metadata']['name']}"


def conditions_of(status: dict[str, Any]) -> dict[str, list[str]]:
    found = status.get("conditions", ())
    return {one["type"]: [one["status"], one["reason"], one["message"]] for one in found}


def events_of(world: World, uid: str) -> list[str]:
    found = world.kubectl.get("events", f"--field-selector=involvedObject.uid={uid}")
    return sorted(one["reason"] for one in found["items"])


def settle(value: Any) -> Any:
    """Without fields that change from run to run."""
    if isinstance(value, dict):
        return {k: settle(v) for k, v in value.items() if k not in CHANGING}
    return [settle(one) for one in value] if isinstance(value, list) else value


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two ends differ, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [d for k in keys for d in differences(one.get(k), other.get(k), f"{path}.{k}")]
    return [] if one == other else [f"{path}: {one!r:.300} is not {other!r:.300}"]

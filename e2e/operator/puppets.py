"""Plays the kubelet for pods that no node takes: makes them run, fail or stay as a test wants.

Pods without a node are deleted by the API server at once, which makes every ending quick.
"""

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

TICK_SECONDS = 0.1
ADDRESS = "10.1.2.3"
"""Of every pod: nobody is there."""


@dataclass(slots=True, kw_only=True)
class Puppets:
    """Marks every pod of a namespace as running, except those that a test keeps back."""

    api: client.CoreV1Api
    namespace: str
    kept: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)

    def keep_back(self, *roles: str) -> None:
        """Leave pods of these roles pending."""
        self.kept = set(roles)

    def fail(self, name: str, container: str, exit_code: int, message: str = "") -> None:
        """A container of a pod ends and is started again, as a kubelet would say it."""
        pod = self.api.read_namespaced_pod(name, self.namespace)
        ended = {"exitCode": exit_code, "reason": "Error", "message": message}
        statuses = [
            {**one, "restartCount": 1, "lastState": {"terminated": ended}}
            if one["name"] == container
            else one
            for one in _statuses(pod, ready=True)
        ]
        self._patch(name, {"containerStatuses": statuses})

    def stall(self, name: str, reason: str, message: str) -> None:
        """Containers of a pod cannot start, as a kubelet would say it."""
        pod = self.api.read_namespaced_pod(name, self.namespace)
        waiting = {"waiting": {"reason": reason, "message": message}}
        statuses = [{**one, "state": waiting} for one in _statuses(pod, ready=False)]
        self._patch(name, {"containerStatuses": statuses})

    def disrupt(self, name: str) -> None:
        """A pod is to be preempted."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
        }
        self._patch(name, {"conditions": [condition | _now()]})

    def _play(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            try:
                for pod in self._pending():
                    if self._waits(pod):
                        self._patch(pod.metadata.name, running_status(pod))
            except ApiException as error:
                if error.status not in {404, 409, 429, 500, 503}:
                    raise
            except (OSError, HTTPError):
                continue  # the API server is away

    def _pending(self) -> list[Any]:
        """Chosen by the API server: of thousands of pods few are new."""
        selector = "status.phase=Pending"
        return self.api.list_namespaced_pod(self.namespace, field_selector=selector).items

    def _waits(self, pod: Any) -> bool:
        role = (pod.metadata.labels or {}).get("rollout.dev/role", "")
        return role not in self.kept

    def _patch(self, name: str, status: dict[str, Any]) -> None:
        self.api.patch_namespaced_pod_status(name, self.namespace, {"status": status})


def running_status(pod: Any, address: str = ADDRESS) -> dict[str, Any]:
    """The status of a pod whose containers all run."""
    conditions = [
        {"type": kind, "status": "True"} | _now()
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    return {
        "phase": "Running",
        "podIP": address,
        "conditions": conditions,
        "containerStatuses": _statuses(pod, ready=True),
    }


def _statuses(pod: Any, *, ready: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "image": one.image,
            "imageID": "",
            "state": {"running": {"startedAt": _stamp()}},
        }
        for one in pod.spec.containers
    ]


def _now() -> dict[str, str]:
    return {"lastTransitionTime": _stamp()}


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

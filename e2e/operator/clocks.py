"""When something is seen of several runs, without the second that kubectl takes."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from operators import eventually
from stage import DONE, World

RUNS = ("a", "b", "c")
LATE_SECONDS_MAX = 2.0  # short: a promise, stretched on a busy machine
STAMP_SECONDS = 1.0
"""Stamps are whole seconds, cut off: what is counted from one is up to this much too long."""


class Watcher:
    """Asks the API server about runs of a namespace."""

    def __init__(self, world: World, runs: tuple[str, ...]) -> None:
        connection = world.puppets.api.api_client
        self._names = runs
        self._namespace = world.kubectl.namespace
        self._runs = client.CustomObjectsApi(connection)
        self._apps = client.AppsV1Api(connection)

    def _place(self, name: str) -> tuple[str, ...]:
        return "rollout.dev", "v1alpha1", self._namespace, "rolloutruns", name

    def status(self, name: str) -> dict[str, Any]:
        return self._runs.get_namespaced_custom_object(*self._place(name)).get("status", {})

    def succeed(self, name: str) -> None:
        """The coordinator says that the work is done."""
        body = {"status": {"progress": DONE}}
        self._runs.patch_namespaced_custom_object_status(*self._place(name), body)

    def finished(self, name: str) -> str:
        """Why the run has ended; empty while it goes on."""
        found = self.status(name).get("conditions", ())
        return next((one["reason"] for one in found if one["type"] == "Finished"), "")

    def children(self, name: str) -> list[Any]:
        """Its StatefulSets."""
        selector = f"rollout.dev/run={name}"
        found = self._apps.list_namespaced_stateful_set(self._namespace, label_selector=selector)
        return found.items

    def wait_for_all(self, met: Callable[[str], Any], what: str) -> dict[str, float]:
        """When each run was first seen so, by this machine's clock, which is the API server's too."""
        seen: dict[str, float] = {}

        def all_met() -> bool:
            now = {name: time.time() for name in self._names if name not in seen and met(name)}
            seen.update(now)
            return len(seen) == len(self._names)

        eventually(all_met, what, every=0.02)
        return seen


def seconds_of(stamp: str) -> float:
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()

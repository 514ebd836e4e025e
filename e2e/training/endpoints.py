"""An endpoint in real pods: what its objects say, and waits that tell why they are vain."""

import json
from dataclasses import dataclass
from typing import Any

from cluster.kubectl import Kubectl
from terminal import why_of_pods
from waiting import SECONDS_MAX, wait_until

KINDS = "deployments,replicasets,pods,services,serviceaccounts,networkpolicies,poddisruptionbudgets"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEndpoint:
    """The endpoint, as its objects say."""

    kubectl: Kubectl
    name: str = "chat"

    @property
    def selector(self) -> str:
        """What chooses its children."""
        return f"rollout.dev/endpoint={self.name}"

    def read(self) -> dict[str, Any]:
        return self.kubectl.get("rolloutendpoint", self.name)

    def status(self) -> dict[str, Any]:
        return self.read().get("status", {})

    def condition(self, kind: str) -> tuple[str, str]:
        found = {one["type"]: one for one in self.status().get("conditions", ())}
        one = found.get(kind, {})
        return one.get("status", ""), one.get("reason", "")

    def edit(self, spec: dict[str, Any]) -> None:
        self.kubectl.merge("rolloutendpoint", self.name, {"spec": spec})

    def pods(self) -> list[dict[str, Any]]:
        return self.kubectl.get("pods", "-l", self.selector)["items"]

    def names(self, kinds: str = KINDS) -> set[str]:
        found = self.kubectl.get(kinds, "-l", self.selector)["items"]
        return {f"{one['kind']}/{one['metadata']['name']}" for one in found}

    def until(self, holds: Any, what: str, seconds: float = SECONDS_MAX) -> Any:
        def hopeless() -> str:
            return why_of_pods(self.pods())

        try:
            return wait_until(holds, what, seconds, every=0.5, hopeless=hopeless)
        except AssertionError as error:
            logs = [
                self.kubectl.attempt(
                    "logs", "-l", self.selector, "--all-containers", "--tail=60"
                ).stdout,
                json.dumps([one["status"].get("containerStatuses") for one in self.pods()]),
            ]
            raise AssertionError(f"{error}; {json.dumps(self.status())}; {logs}") from None

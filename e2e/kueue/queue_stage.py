"""A namespace with queues and an operator: what tests do and ask there."""

import json
from dataclasses import dataclass
from typing import Any

from operators import eventually
from stage import DONE, World

from runs import build_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(World):
    """What tests of queues ask beside."""

    def workloads(self) -> list[dict[str, Any]]:
        return self.kubectl.get("workloads.kueue.x-k8s.io")["items"]

    def workload(self, name: str = "arithmetic") -> dict[str, Any]:
        found = [one for one in self.workloads() if owner_of(one) == name]
        return found[0] if found else {}

    def said(self, kind: str, name: str = "arithmetic") -> tuple[str, str]:
        """Status and reason of a condition of the run's Workload."""
        conditions = self.workload(name).get("status", {}).get("conditions", ())
        found = next((one for one in conditions if one["type"] == kind), {})
        return found.get("status", ""), found.get("reason", "")

    def pods(self, name: str = "arithmetic") -> list[dict[str, Any]]:
        return self.kubectl.get("pods", "-l", f"rollout.dev/run={name}")["items"]

    def admitted(self, name: str = "arithmetic") -> bool:
        return self.said("Admitted", name)[0] == "True"

    def start(self, name: str, spec: dict[str, Any], **labels: str) -> None:
        run = build_run(name, spec)
        run["metadata"]["labels"] = labels
        self.kubectl.apply(run)

    def succeed(self, name: str = "arithmetic") -> None:
        """Of the attempt that there is."""
        self.report({**DONE, "attempt": self.run(name)["status"]["attempt"]}, name)

    def until(self, ask: Any, what: str) -> Any:
        try:
            return eventually(ask, what)
        except AssertionError as error:
            states = {one["metadata"]["name"]: one.get("status") for one in self.workloads()}
            raise AssertionError(f"{error}\nworkloads: {json.dumps(states, indent=1)}") from error


def owner_of(live: dict[str, Any]) -> str:
    return live["metadata"]["labels"].get("rollout.dev/run", "")

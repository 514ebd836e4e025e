"""A namespace with an operator that watches it, and what tests do and ask there."""

from dataclasses import dataclass
from typing import Any

from operators import Operator, eventually
from puppets import Puppets

from cluster.kubectl import Kubectl
from runs import build_run

DONE = {"step": 400, "outcome": {"kind": "Succeeded", "reason": "Done"}}
"""What a coordinator reports last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A namespace with an operator that watches it."""

    kubectl: Kubectl
    puppets: Puppets
    operator: Operator

    def run(self, name: str = "arithmetic") -> dict[str, Any]:
        return self.kubectl.get("rolloutrun", name)

    def apply(self, name: str = "arithmetic", spec: dict[str, Any] | None = None) -> None:
        self.kubectl.apply(build_run(name, spec))

    def patch(self, spec: dict[str, Any], name: str = "arithmetic") -> None:
        self.kubectl.merge("rolloutrun", name, {"spec": spec})

    def report(self, progress: dict[str, Any], name: str = "arithmetic") -> None:
        """Write progress as the coordinator would."""
        self.kubectl.merge("rolloutrun", name, {"status": {"progress": progress}}, "status")

    def succeed(self, name: str = "arithmetic") -> None:
        """The coordinator says that the work is done."""
        self.report(DONE, name)

    def condition(self, kind: str, name: str = "arithmetic") -> dict[str, Any]:
        found = self.run(name).get("status", {}).get("conditions", ())
        return next((one for one in found if one["type"] == kind), {})

    def wait_for(self, kind: str, status: str, reason: str = "", name: str = "arithmetic") -> Any:
        def there() -> Any:
            one = self.condition(kind, name)
            met = one.get("status") == status and reason in {"", one.get("reason")}
            return one if met else None

        what = f"{kind} of {name} did not become {status} {reason}"
        try:
            return eventually(there, what)
        except AssertionError as error:
            ended = self.operator.process.poll()
            state = "lives" if ended is None else f"ended with {ended}"
            status = self.run(name).get("status")
            raise AssertionError(f"{error}; the operator {state}; status: {status}") from error

    def replicas(self) -> dict[str, int]:
        found = self.kubectl.get("statefulsets")["items"]
        return {one["metadata"]["name"]: one["spec"]["replicas"] for one in found}

    def pod_uids(self, role: str) -> set[str]:
        pods = self.kubectl.get("pods", "-l", f"rollout.dev/role={role}")["items"]
        return {one["metadata"]["uid"] for one in pods}

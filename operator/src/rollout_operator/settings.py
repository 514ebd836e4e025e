"""Settings of the operator process, read from the environment once and then passed as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout_operator.run.render.inputs import RoleReference

VERSION = "0.1.0"
WORKER_IMAGE = f"registry.invalid/rollout-worker:{VERSION}"
"""In no registry, and nobody can own its host (RFC 2606): a bare name would be whoever's has it in a public one."""
VLLM_IMAGE = "vllm/vllm-openai:v0.32.0"
COORDINATOR_ROLE = "rollout-coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the composition root needs.

    ``namespaces`` empty means the whole cluster. ``health_port`` serves liveness, readiness and
    metrics on all interfaces of the pod; 0 turns it off. ``operator_namespace`` and ``account``
    empty mean those of the process's own service account. A watch that says nothing for
    ``watch_seconds`` (the API server sends a bookmark every minute) is opened anew; one that stays
    silent for ``dead_seconds`` fails liveness. ``coordinator_role`` is what coordinators are bound to: a
    ClusterRole, or with ``namespaces`` a Role in each of them.
    """

    namespaces: tuple[str, ...] = ()
    operator_namespace: str = ""
    account: str = ""
    identity: str = ""
    leader_election: bool = True
    health_port: int = 8080
    worker_image: str = WORKER_IMAGE
    vllm_image: str = VLLM_IMAGE
    coordinator_role: str = COORDINATOR_ROLE
    concurrency: int = 16
    runs_per_namespace: int = 0
    resync_seconds: int = 3600
    server_timeout_seconds: int = 120
    connect_timeout_seconds: int = 10
    watch_seconds: int = 70

    def role_reference(self) -> RoleReference:
        """What coordinators are bound to."""
        kind = "Role" if self.namespaces else "ClusterRole"
        return RoleReference(kind=kind, name=self.coordinator_role)

    @property
    def dead_seconds(self) -> float:
        """Two tries and a half: three minutes unless set otherwise."""
        return self.watch_seconds * 2.5 + 5


def parse_settings(environment: Mapping[str, str]) -> Settings:
    """Read the ``ROLLOUT_...`` variables; docs/how-to/run-on-kubernetes.md lists them.

    Raises ValueError naming the variable, the value and what was expected.
    """
    names = environment.get("ROLLOUT_NAMESPACES", "")
    return Settings(
        namespaces=tuple(name.strip() for name in names.split(",") if name.strip()),
        operator_namespace=environment.get("ROLLOUT_OPERATOR_NAMESPACE", ""),
        account=environment.get("ROLLOUT_ACCOUNT", ""),
        identity=environment.get("ROLLOUT_IDENTITY", ""),
        leader_election=_flag(environment, "ROLLOUT_LEADER_ELECTION", default=True),
        health_port=_number(environment, "ROLLOUT_HEALTH_PORT", 8080, 0, 65535, "a port"),
        worker_image=environment.get("ROLLOUT_WORKER_IMAGE") or WORKER_IMAGE,
        vllm_image=environment.get("ROLLOUT_VLLM_IMAGE") or VLLM_IMAGE,
        coordinator_role=environment.get("ROLLOUT_COORDINATOR_ROLE") or COORDINATOR_ROLE,
        concurrency=_number(environment, "ROLLOUT_CONCURRENCY", 16, 1, 256, "a number"),
        runs_per_namespace=_number(
            environment, "ROLLOUT_RUNS_PER_NAMESPACE", 0, 0, 10_000, "a number"
        ),
        resync_seconds=_number(environment, "ROLLOUT_RESYNC_SECONDS", 3600, 10, 86_400, "seconds"),
        watch_seconds=_number(environment, "ROLLOUT_WATCH_SECONDS", 70, 65, 3600, "seconds"),
    )


def _number(
    environment: Mapping[str, str], name: str, default: int, low: int, high: int, what: str
) -> int:
    text = environment.get(name, "") or str(default)
    if not text.isdigit() or not low <= int(text) <= high:
        raise ValueError(f"{name} is {text!r}; expected {what} from {low} to {high}")
    return int(text)


def _flag(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environment.get(name, "") or str(default).lower()
    if text not in {"true", "false"}:
        raise ValueError(f"{name} is {text!r}; expected true or false")
    return text == "true"

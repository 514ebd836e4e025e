"""A cluster in memory for planning tests: StatefulSets, pods and a status that follow the plans."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rollout_api import names
from rollout_api.names import Role
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.cache.children import Child, Ended, Node, Pod, Workload
from rollout_operator.controller.times import render_time
from rollout_operator.run.attempt import Record, ScaleState, render_record
from rollout_operator.run.plan.attempts import current_attempt, misses_record
from rollout_operator.run.plan.model import ROLES, Blocked, MadeSnapshot, Observed, Plan
from rollout_operator.run.plan.plan import plan_run
from rollout_operator.run.plan.preconditions.checks import filled_by_presets, resolve_spec
from rollout_operator.run.plan.settled import settled_digest
from rollout_operator.run.render.inputs import Inputs, Platform
from rollout_operator.signing import KEY_BYTES, Keyring

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 400,
    },
}
RING = Keyring(current=b"k" * KEY_BYTES)
"""The operator's key for records."""
PLATFORM = Platform(worker_image="worker:1", vllm_image="vllm:1")


def build_inputs(
    spec: dict[str, Any] | None = None,
    runtime: RuntimeSpec | None = None,
    attempt: int = 1,
    platform: Platform = PLATFORM,
) -> Inputs:
    used = runtime or RuntimeSpec()
    return Inputs(
        name="run",
        namespace="ns",
        uid="uid-0001",
        attempt=attempt,
        spec=resolve_spec(spec or SPEC, used),
        runtime=used,
        platform=platform,
    )


@dataclass(slots=True, kw_only=True)
class World:
    """One run; ``tick`` lets the operator act once and the cluster follow."""

    spec: dict[str, Any] = field(default_factory=lambda: SPEC)
    now: datetime = BEGIN
    generation: int = 1
    gate: Blocked | None = None
    blocked: Blocked | None = None
    status: dict[str, Any] = field(default_factory=dict)
    workloads: dict[Role, tuple[Workload, int]] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    rendered: dict[str, tuple[int, str]] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    watches_nodes: bool = False
    pending: frozenset[str] = frozenset()
    frozen_pods: bool = False
    removed: bool = False
    deleted: bool = False
    tracker: str = ""
    writes: int = 0
    stops: int = 0
    settings: list[int] = field(default_factory=list)
    snapshots: dict[str, MadeSnapshot] = field(default_factory=dict)
    unsaved: Blocked | None = None
    notes: list[str] = field(default_factory=list)
    served: int = 0

    def observe(self) -> Observed:
        observed = self._observe()
        return replace(observed, record_lost=self._has_lost_its_record(observed))

    def _has_lost_its_record(self, observed: Observed) -> bool:
        told = observed.status
        return misses_record(observed) and self._render(told.attempt).name != told.configuration

    def _render(self, attempt: int) -> Record:
        return render_record(build_inputs(self.spec, attempt=attempt))

    def _observe(self) -> Observed:
        return Observed(
            name="run",
            namespace="ns",
            uid="uid-0001",
            generation=self.generation,
            settled=self.settled(),
            suspend=bool(self.spec.get("suspend")),
            spec=resolve_spec(self.spec, RuntimeSpec()),
            status=RunStatus.model_validate(self.status),
            filled=filled_by_presets(self.spec, RuntimeSpec()),
            gate=self.gate,
            blocked=self.blocked,
            children=self.children(),
            pods=tuple(self.pods.values()),
            nodes=self.nodes,
            watches_nodes=self.watches_nodes,
            tracker=self.tracker,
            snapshots=tuple(self.snapshots.values()),
            unsaved=self.unsaved,
        )

    def settled(self) -> str:
        return settled_digest(RolloutRunSpec.model_validate(self.spec))

    def counts(self, role: str) -> tuple[int, int]:
        """Workers of a role that are ready, and those wanted, as the status says."""
        counted = self.status[role]
        return counted["ready"], counted["desired"]

    def children(self) -> dict[tuple[str, str], Child]:
        found = {}
        for role, (workload, attempt) in self.workloads.items():
            name = names.workload_name("run", role)
            found["StatefulSet", name] = self._child("StatefulSet", name, attempt, workload)
        for name, record in self.records.items():
            one = self._child("ConfigMap", name, record.attempt, None)
            signed = replace(one, content=name, signature=RING.sign(name))
            made_from = self.rendered.get(name, (self.generation, self.settled()))
            generation, settled = made_from
            found["ConfigMap", name] = replace(
                signed, expected="x/y", generation=generation, settled=settled
            )
        return found

    def _child(self, kind: str, name: str, attempt: int, workload: Workload | None) -> Child:
        return Child(
            kind=kind,
            namespace="ns",
            name=name,
            uid=f"{kind}/{name}",
            version=1,
            run="run",
            run_uid="uid-0001",
            attempt=attempt,
            workload=workload,
        )

    def plan(self) -> Plan:
        return plan_run(self.observe(), self.now)

    def tick(self, seconds: float = 1.0, *, status: bool = True, follow: bool = True) -> Plan:
        """One reconcile; without ``status`` the operator died before it wrote that."""
        plan = self.plan()
        self.apply(plan, status=status)
        if follow:
            self.follow()
        self.now += timedelta(seconds=seconds)
        return plan

    def settle(self, ticks: int = 12) -> None:
        for _ in range(ticks):
            self.tick()

    def apply(self, plan: Plan, *, status: bool = True) -> None:
        if plan.wanted is not None:
            self._apply_children(plan)
        for role, live in plan.lower.items():
            self._set(role, live, self.workloads[role][1])
        if plan.remove_children:
            self.workloads.clear()
            self.records.clear()
            self.removed = True
        self.deleted = self.deleted or plan.delete_run
        self.stops += plan.stop_coordinator
        self._apply_snapshots(plan)
        if plan.send_settings:
            self.settings.append(self.generation)
        if plan.status is not None and status:
            kept = {key: value for key, value in self.status.items() if key == "progress"}
            self.status = {**dict(plan.status), **kept}
            self.writes += 1
            self.notes += [note.reason.value for note in plan.notes]

    def _apply_snapshots(self, plan: Plan) -> None:
        for order in plan.makes:
            assert order.name not in self.snapshots
            self.served += 1
            self.snapshots[order.name] = MadeSnapshot(
                name=order.name,
                uid=f"{order.name}/{self.served}",
                version=self.served,
                schedule=order.schedule,
                created=render_time(self.now),
                state="Active",
            )
        for one in plan.drops:
            del self.snapshots[one.name]

    def _apply_children(self, plan: Plan) -> None:
        wanted = plan.wanted
        assert wanted is not None
        if wanted.record is None:
            attempt = current_attempt(self.observe())
            record = self._render(attempt)
            self.records = {record.name: record}
            self.rendered[record.name] = (self.generation, self.settled())
            for role in ROLES:
                if record.child("StatefulSet", names.workload_name("run", role)):
                    self._set(role, wanted.live.get(role, ScaleState(replicas=0)), attempt)
        for role, live in wanted.live.items():
            self._set(role, live, wanted.attempt)
        for one in wanted.deletions:
            self.pods.pop(one.pod.name, None)

    def _set(self, role: Role, live: ScaleState, attempt: int) -> None:
        workload = Workload(
            replicas=live.replicas,
            incarnation=max(1, live.incarnation) if role == "learner" else 0,
            first=live.first,
            disruptions=live.disruptions,
            gang_tries=live.gang_tries,
            hold_until=live.hold_until,
        )
        before = self.workloads.get(role)
        if before != (workload, attempt):
            self.writes += 1
        self.workloads[role] = (workload, attempt)

    def follow(self) -> None:
        """What the StatefulSet controller and the kubelet would do."""
        for role, (workload, attempt) in self.workloads.items():
            name = names.workload_name("run", role)
            wanted = {f"{name}-{index}" for index in range(workload.replicas)}
            mine = {n for n, pod in self.pods.items() if pod.role == role}
            if self.frozen_pods:
                continue
            for gone in mine - wanted:
                del self.pods[gone]
            for new in sorted(wanted - mine):
                self.pods[new] = self._pod(new, role, attempt, workload.incarnation)

    def _pod(self, name: str, role: str, attempt: int, incarnation: int) -> Pod:
        self.served += 1
        runs = role not in self.pending
        return Pod(
            namespace="ns",
            name=name,
            uid=f"{name}/{self.served}",
            version=self.served,
            run="run",
            run_uid="uid-0001",
            role=role,
            attempt=attempt,
            incarnation=incarnation,
            created=self.now,
            phase="Running" if runs else "Pending",
            ready=runs,
            node="node-a" if runs else "",
        )

    # -- what happens to it ---------------------------------------------------------------------------

    def change(self, **spec: Any) -> None:
        self.spec = {**self.spec, **spec}
        self.generation += 1

    def report(self, **progress: Any) -> None:
        self.status = {**self.status, "progress": progress}

    def anchor(self, step: int, **progress: Any) -> None:
        """The learner has saved one."""
        name = f"step-{step:06d}"
        said = {"lastSnapshot": {"name": name, "step": step}, **progress}
        self.report(step=step, attempt=self.status.get("attempt", 1), **said)

    def finish(self, state: Literal["Complete", "Failed"] = "Complete", words: str = "") -> None:
        """Every snapshot that is being made is over."""
        for name, one in self.snapshots.items():
            if one.state == "Active":
                self.snapshots[name] = replace(one, state=state, words=words)

    def crash(
        self, name: str, code: int, message: str = "", restarts: int = 1, reason: str = "Error"
    ) -> None:
        pod = self.pods[name]
        container = "actor" if pod.role == "actor" else pod.role
        ended = Ended(container=container, exit_code=code, reason=reason, message=message)
        self.pods[name] = replace(pod, restarts=restarts, ended=ended)

    def lose(self, name: str) -> None:
        del self.pods[name]

    # -- questions ------------------------------------------------------------------------------------

    def condition(self, kind: str) -> tuple[str, str] | None:
        for one in self.status.get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"]
        return None

    def message(self, kind: str) -> str:
        return next(one["message"] for one in self.status["conditions"] if one["type"] == kind)

    def replicas(self) -> dict[str, int]:
        return {role: workload.replicas for role, (workload, _) in self.workloads.items()}

    @property
    def incarnation(self) -> int:
        return self.workloads["learner"][0].incarnation

"""A world with a queue: steps on the Workload are done as the operator's writer does them, and Kueue is played."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from worlds import World, build_inputs

from rollout_api import names
from rollout_operator.controller.times import render_time
from rollout_operator.kueue.quota import Quota, parse_quota
from rollout_operator.run.plan.attempts import current_attempt, find_record
from rollout_operator.run.plan.model import Observed, Plan, QuotaStep
from rollout_operator.run.queue.claim import build_claim, build_workload
from rollout_operator.run.queue.writing import build_change, build_condition, build_requeue

QUOTA = Quota(
    namespace="ns",
    name="run",
    uid="w",
    version=1,
    generation=1,
    run="run",
    run_uid="uid-0001",
    queue="q",
    digest="d",
)


@dataclass(slots=True, kw_only=True)
class QueuedWorld(World):
    """``live`` is the Workload as the API server has it."""

    queue: str = "gpus"
    labels: dict[str, str] = field(default_factory=dict)
    served: bool = True
    live: dict[str, Any] | None = None
    steps: list[str] = field(default_factory=list)
    made: int = 0

    def observe(self) -> Observed:
        seen = World.observe(self)
        quota = parse_quota(self.live) if self.live is not None else None
        seen = replace(seen, queue=self.queue, kueue_served=self.served, quota=quota)
        started = find_record(seen, current_attempt(seen)) is not None
        if started or seen.suspend or seen.gate is not None or not self.queue:
            return seen
        return replace(seen, claim=build_claim(build_inputs(self.spec), self.queue, self.labels))

    def apply(self, plan: Plan, *, status: bool = True) -> None:
        observed = self.observe()
        World.apply(self, plan, status=status)
        if plan.quota is not None:
            self.steps.append(plan.quota.verb)
            self._step(observed, plan.quota)

    def _step(self, observed: Observed, step: QuotaStep) -> None:
        if step.verb == "Ask":
            assert observed.claim is not None and self.live is None
            body = build_workload("run", "ns", "uid-0001", observed.claim)
            self.made += 1
            body["metadata"] |= {"uid": f"w-{self.made}", "resourceVersion": "1", "generation": 1}
            self.live = body
            return
        quota = observed.quota
        assert quota is not None
        self.merge(*_bodies(observed, quota, step, self.now))
        if step.verb in {"GiveUp", "LetGo", "Finish"}:
            self._let_go(step)

    def _let_go(self, step: QuotaStep) -> None:
        assert self.live is not None
        meta = self.live["metadata"]
        if step.verb == "GiveUp" and meta["finalizers"] and "deletionTimestamp" not in meta:
            meta["deletionTimestamp"] = render_time(self.now)
            return
        meta["finalizers"] = [one for one in meta["finalizers"] if one != names.FINALIZER_QUOTA]
        if "deletionTimestamp" in meta or step.verb == "GiveUp":
            self.live = None

    def merge(self, *bodies: dict[str, Any]) -> None:
        """JSON merge patches of the Workload."""
        for body in bodies:
            assert self.live is not None
            _merge(self.live, {key: part for key, part in body.items() if key != "metadata"})
            self.live["metadata"].setdefault("annotations", {}).update(
                body["metadata"].get("annotations", {})
            )
            self.live["metadata"]["resourceVersion"] += "0"

    # -- what Kueue does ------------------------------------------------------------------------------

    def say(self, kind: str, status: str, reason: str, message: str = "") -> None:
        assert self.live is not None
        state = self.live.setdefault("status", {})
        kept = [one for one in state.get("conditions", ()) if one["type"] != kind]
        made = {"type": kind, "status": status, "reason": reason, "message": message}
        state["conditions"] = [*kept, made | {"lastTransitionTime": render_time(self.now)}]

    def admit(self, **counts: int) -> None:
        """Kueue reserves quota and admits."""
        assert self.live is not None
        asked = self.live["spec"]["podSets"]
        given = [
            {"name": one["name"], "count": counts.get(one["name"], one["count"])} for one in asked
        ]
        self.say("QuotaReserved", "True", "QuotaReserved")
        self.say("Admitted", "True", "Admitted")
        if self.condition_of("Evicted"):
            self.say("Evicted", "False", "QuotaReserved")
        self.live["status"]["admission"] = {"clusterQueue": "cq", "podSetAssignments": given}

    def evict(self, reason: str = "Preempted") -> None:
        self.say("Evicted", "True", reason, "somebody else comes first")

    def condition_of(self, kind: str) -> tuple[str, str] | None:
        """A condition of the Workload."""
        found = (self.live or {}).get("status", {}).get("conditions", ())
        return next(((one["status"], one["reason"]) for one in found if one["type"] == kind), None)


def _bodies(observed: Observed, quota: Quota, step: QuotaStep, now: datetime) -> list[dict]:
    change = (step.holds, step.reason, step.message)
    if step.verb == "Change":
        assert observed.claim is not None
        return [build_change(quota, observed.claim)]
    if step.verb == "Requeue":
        return [build_requeue(quota, now)]
    if step.verb in {"Finish", "PodsReady"}:
        kind = {"Finish": "Finished"}.get(step.verb, step.verb)
        return [build_condition(quota, kind, change, now)]
    return []


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value

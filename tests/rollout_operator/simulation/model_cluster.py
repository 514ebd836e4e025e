"""What the rest of a cluster does for a run: StatefulSets make pods, nodes run them, what has no owner goes, the work goes on."""

from __future__ import annotations

import asyncio
import copy
import random
from dataclasses import dataclass, field
from typing import Any

from model_objects import Body, ModelObjects, Place

from rollout_api import names

CLUSTER = "the cluster"
COORDINATOR = "rollout-coordinator"
PASS_SECONDS = (0.1, 1.0)
GOAL = 3
"""Steps that a run takes once it is allowed to end."""


AFTER = {"": "Saving", "Saving": "Unsigned", "Unsigned": "Taken", "Taken": "Taken"}
"""What becomes of a snapshot."""
LAYER = {"kind": "train_state", "digest": "c" * 64, "size_bytes": 9, "grade": "exact"}
TAKEN = {"id": "ab" * 32, "step": 1, "grade": "exact", "size_bytes": 9, "layers": [LAYER]}


@dataclass(slots=True, kw_only=True)
class ModelCluster:
    """``may_end``: the work ends at its goal. ``outcome``: how. ``stopped``: coordinators' pods that were told to
    stop. ``orders``: how far snapshots are, by the coordinator's pod and the object's UID."""

    model: ModelObjects
    draw: random.Random
    now: Any
    slow: float = 0.3
    may_end: bool = False
    outcome: Body = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    kept_back: set[str] = field(default_factory=set)
    orders: dict[tuple[str, str], str] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            parts = [self.scale, self.run_pods, self.collect, self.work]
            self.draw.shuffle(parts)
            for part in parts:
                part()
            await asyncio.sleep(self.draw.uniform(*PASS_SECONDS))

    # -- StatefulSets -----------------------------------------------------------------------------------

    def scale(self) -> None:
        for place, live in self.model.of_kind("statefulsets"):
            mine = {
                pod["metadata"]["name"]: (at, pod)
                for at, pod in self.model.of_kind("pods", place[1])
                if owner_of(pod) == live["metadata"]["uid"]
            }
            self._scale(place, live, mine)
            self._say(place, live, len(mine))

    def _scale(self, place: Place, live: Body, mine: dict[str, tuple[Place, Body]]) -> None:
        wanted = {f"{place[2]}-{number}" for number in range(live["spec"].get("replicas", 1))}
        for name, (at, pod) in mine.items():
            rolls = live["spec"]["updateStrategy"]["type"] == "RollingUpdate"
            old = rolls and pod["x-template"] != live["spec"]["template"]
            if (name not in wanted or old) and "deletionTimestamp" not in pod["metadata"]:
                self.model.delete(CLUSTER, at)
        for name in sorted(wanted - mine.keys()):
            at = ("pods", place[1], name)
            if at not in self.model.objects:
                self.model.create(CLUSTER, at, _build_pod(place, live, name))

    def _say(self, place: Place, live: Body, num_pods: int) -> None:
        status = {"observedGeneration": live["metadata"]["generation"], "replicas": num_pods}
        if live.get("status") != status:
            self.model.merge(CLUSTER, place, {"status": status}, "status")

    # -- nodes ------------------------------------------------------------------------------------------

    def run_pods(self) -> None:
        for place, pod in self.model.of_kind("pods"):
            if self.draw.random() < self.slow or "x-template" not in pod:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self.model.drop(place)
            elif pod.get("status", {}).get("phase") != "Running" and not self._waits(pod):
                self.model.merge(CLUSTER, place, {"status": running(pod)}, "status")

    def _waits(self, pod: Body) -> bool:
        return pod["metadata"]["labels"].get(names.LABEL_ROLE) in self.kept_back

    def end_container(self, run: str, role: str, number: int, code: int, message: str = "") -> None:
        """A container ends and is started again."""
        place = ("pods", "ns", f"{names.workload_name(run, role)}-{number}")
        if (pod := self.model.objects.get(place)) is None:
            return
        ended = {"exitCode": code, "reason": "Error", "message": message}
        statuses = copy.deepcopy(pod["status"]["containerStatuses"])
        for one in statuses:
            if one["name"] == role:
                one |= {"restartCount": one["restartCount"] + 1, "lastState": {"terminated": ended}}
        self.model.merge(CLUSTER, place, {"status": {"containerStatuses": statuses}}, "status")

    # -- the garbage collector ------------------------------------------------------------------------------

    def collect(self) -> None:
        """What all owners have left goes; an owner that is gone is named no more."""
        living = {one["metadata"]["uid"] for one in self.model.objects.values()}
        for place, live in list(self.model.objects.items()):
            owners = live["metadata"].get("ownerReferences") or []
            kept = [one for one in owners if one["uid"] in living]
            if not owners or len(kept) == len(owners) or self.draw.random() < self.slow:
                continue
            if kept:
                self.model.merge(CLUSTER, place, {"metadata": {"ownerReferences": kept}})
            elif "deletionTimestamp" not in live["metadata"]:
                self.model.delete(CLUSTER, place)

    # -- the run's own coordinator ----------------------------------------------------------------------------

    def work(self) -> None:
        for place, run in self.model.of_kind("rolloutruns"):
            if (attempt := self._attempt_at_work(place[2], run["spec"])) is None:
                continue
            before = run.get("status", {}).get("progress", {})
            same = before.get("attempt") == attempt
            if same and before.get("outcome"):
                continue
            trains = "train" in run["spec"]
            done = before.get("step", 0) if trains else before.get("rows", {}).get("done", 0)
            step = min(GOAL, (done if same else 0) + 1)
            moved = {"step": step} if trains else {"rows": {"total": GOAL, "done": step}}
            progress: Body = {"attempt": attempt, **moved, "outcome": None}
            if self._coordinator(place[2]) in self.stopped:
                progress["outcome"] = {"kind": "Stopped", "reason": "Suspended"}
            elif step == GOAL and self.may_end:
                progress["outcome"] = self.outcome
            if progress != {**before, "outcome": before.get("outcome")}:
                self.model.merge(COORDINATOR, place, {"status": {"progress": progress}}, "status")

    def save(self, coordinator: str, order: Body) -> Body:
        """The coordinator's answer: it saves, asks for a signature, and has taken it once it is signed."""
        place = (coordinator, order["snapshot"])
        state = self.orders.get(place, "")
        if state != "Unsigned" or order.get("signature"):
            state = AFTER[state]
        self.orders[place] = state
        return {"state": state, **(TAKEN if state != "Saving" else {})}

    def _coordinator(self, run: str) -> str:
        return self.model.get(("pods", "ns", f"{run}-coordinator-0"))["metadata"]["uid"]

    def _attempt_at_work(self, run: str, spec: Body) -> int | None:
        """The attempt whose coordinator runs, and whose learner does; where there is none, the first actor."""
        found = {}
        worker = "learner" if "train" in spec else "actor"
        for role in ("coordinator", worker):
            pod = self.model.objects.get(("pods", "ns", f"{names.workload_name(run, role)}-0"))
            if pod is None or not is_ready(pod) or "deletionTimestamp" in pod["metadata"]:
                return None
            found[role] = int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])
        return found[worker] if len(set(found.values())) == 1 else None


def _build_pod(place: Place, live: Body, name: str) -> Body:
    template = copy.deepcopy(live["spec"]["template"])
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": place[2], "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": place[1],
            "labels": template["metadata"].get("labels", {}),
            "ownerReferences": [{**owner, "uid": live["metadata"]["uid"]}],
        },
        "spec": {"containers": [{"name": one["name"]} for one in template["spec"]["containers"]]},
        "status": {"phase": "Pending"},
        "x-template": copy.deepcopy(live["spec"]["template"]),
    }


def running(pod: Body) -> Body:
    containers = [
        {"name": one["name"], "ready": True, "restartCount": 0} for one in pod["spec"]["containers"]
    ]
    ready = {"type": "Ready", "status": "True"}
    return {"phase": "Running", "conditions": [ready], "containerStatuses": containers}


def is_ready(pod: Body) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def owner_of(live: Body) -> str:
    owners = live["metadata"].get("ownerReferences") or ()
    return next((one["uid"] for one in owners if one.get("controller")), "")

"""What must hold of an operator whatever happens to it: judged at every write and at every pod, and at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model_cluster import CLUSTER, COORDINATOR, owner_of
from model_objects import Body, Change, ModelObjects, Write
from run_stories import PERSON, PLACE

from rollout_api import names
from rollout_operator.signing import CHILDREN_FILE

OTHERS = {CLUSTER, COORDINATOR, PERSON}
FREE = {"leases", "events"}
OWN = {"rolloutruns", "clusterrolloutruntimes", "rolloutsnapshots"}
CHANGING = {
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "lastTransitionTime",
    "startTime", "completionTime", "activeSeconds", "lastTime", "rollout.dev/applied", "rollout.dev/not-after",
    "rollout.dev/signature", "binaryData", "data", "x-template", "x-status-owners",
}  # fmt: skip
"""Named by the server, by the clock or by chance."""


@dataclass(slots=True, kw_only=True)
class Promises:
    """Notes what was broken, each with what was done then."""

    say: Callable[[str], None]
    broken: list[str] = field(default_factory=list)
    num_writes: int = 0
    writes: list[str] = field(default_factory=list)
    records: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict)
    """Names and packed children of what each attempt of a run was rendered as."""
    uids: set[str] = field(default_factory=set)
    last_attempts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def fail(self, words: str) -> None:
        self.say(f"BROKEN: {words}")
        self.broken.append(words)

    def judge(self, write: Write) -> None:
        """Before a write is done."""
        if write.who in OTHERS or write.place[0] in FREE:
            return
        self.num_writes += 1
        self.writes.append(f"{write.verb} {'/'.join(write.place)} {write.part}")
        self.say(f"  {self.writes[-1]}")
        if not self._is_ours(write):
            self.fail(f"a write on another owner's object: {self.writes[-1]}")
        if write.live is not None and not write.is_bound:
            self.fail(f"a write that is bound to no version: {self.writes[-1]}")
        if write.place == PLACE and write.part != "status" and write.verb != "delete":
            self.fail(f"a write on the run itself: {self.writes[-1]}")

    def _is_ours(self, write: Write) -> bool:
        if write.live is None or write.place[0] in OWN:
            return True
        if write.place[0] == "pods":
            return "x-template" in write.live and _run_of(write.live) in self.uids
        return owner_of(write.live) in self.uids

    def changed(self, change: Change, model: ModelObjects) -> None:
        """After a write."""
        plural = change.place[0]
        if plural == "pods" and change.before is None:
            self._look_at_attempts(model)
        if plural == "configmaps" and change.after is not None:
            self._look_at_record(change.after)
        if change.place == PLACE and change.after is not None:
            self.uids.add(change.after["metadata"]["uid"])
            self._look_at_status(change.after["metadata"]["uid"], change.after.get("status", {}))

    def _look_at_attempts(self, model: ModelObjects) -> None:
        pods = [pod for _, pod in model.of_kind("pods", "ns") if "x-template" in pod]
        attempts = {(_run_of(one), one["metadata"]["labels"][names.LABEL_ATTEMPT]) for one in pods}
        if len(attempts) > len({run for run, _ in attempts}):
            self.fail(f"pods of run attempts {sorted(attempts)} live at once")

    def _look_at_record(self, live: Body) -> None:
        annotations = live["metadata"].get("annotations", {})
        if names.ANNOTATION_CHILDREN not in annotations or owner_of(live) not in self.uids:
            return
        attempt = int(live["metadata"]["labels"][names.LABEL_ATTEMPT])
        known = self.records.setdefault((owner_of(live), attempt), {})
        packed = live["binaryData"][CHILDREN_FILE]
        name = live["metadata"]["name"]
        if known.setdefault(name, packed) != packed or len(known) > 1:
            self.fail(f"attempt {attempt} was rendered in two ways: {sorted(known)}")

    def _look_at_status(self, uid: str, status: Body) -> None:
        attempt, last = status.get("attempt", 0), self.last_attempts.get(uid, 0)
        if attempt < last:
            self.fail(f"the status went back from attempt {last} to {attempt}")
        self.last_attempts[uid] = max(attempt, last)
        found = {one["type"]: one for one in status.get("conditions", ())}
        over = found.get("Finished", {})
        mark = (
            (over.get("reason", ""), over.get("message", ""))
            if over.get("status") == "True"
            else ()
        )
        ended = self.ends.get(uid, ())
        if ended and mark != ended:
            self.fail(f"the end was {ended} and became {mark}")
        self.ends[uid] = mark or ended


def _run_of(pod: Body) -> str:
    return pod["metadata"]["labels"].get(names.LABEL_RUN_UID, "")


def end_of(model: ModelObjects) -> dict[str, Any]:
    """What a run has come to, without what differs from one life to the next."""
    children = {
        "/".join(place): settle({part: live[part] for part in live if part != "status"})
        | _came_to(live)
        for place, live in model.objects.items()
        if place[1] == "ns" and place[0] != "events" and place != PLACE
    }
    status = dict(model.objects.get(PLACE, {}).get("status", {}))
    status.pop("progress", None)
    conditions = {
        one["type"]: [one["status"], one["reason"], one["message"]]
        for one in status.pop("conditions", ())
    }
    plain = {"children": children, "status": settle(status), "conditions": conditions}
    text = json.dumps(plain, sort_keys=True)
    return json.loads(re.sub(r"(secrets-run-\w+|pods-[\w-]+|statefulsets-[\w-]+)-\d+", "UID", text))


def _came_to(live: Body) -> Body:
    """Of a snapshot, how it ended."""
    found = live.get("status", {}).get("conditions", ())
    ends = [one["reason"] for one in found if one["type"] == "Finished"]
    return {"ended": ends[0]} if ends and live["kind"] == "RolloutSnapshot" else {}


def settle(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: settle(v) for k, v in value.items() if k not in CHANGING}
    return [settle(one) for one in value] if isinstance(value, list) else value


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two ends differ, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [d for k in keys for d in differences(one.get(k), other.get(k), f"{path}.{k}")]
    return [] if one == other else [f"{path}: {one!r:.200} is not {other!r:.200}"]

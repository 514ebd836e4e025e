"""The life of a deleted RolloutSnapshot in virtual time: the real manager and client, the model of the API server, and a Job controller."""

from __future__ import annotations

import asyncio
import random
import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from model_objects import Body, Change, ModelObjects
from model_requests import Chaos, Exchange, ModelSession, Response
from simulate_operator import _NOBODY, SYSTEM, build_leader, build_manager, heard, run_manager
from virtual_time import Process, run_virtual

from rollout_api import names
from rollout_operator.controller.clocks import Clocks
from rollout_operator.run.record_keys import build_secret
from rollout_operator.signing import KEY_BYTES, SECRET_NAME

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = ("rolloutsnapshots", "ns", "best")
UID, RUN_UID = "snap-uid-1", "run-uid-1"
JOB = ("jobs", "ns", names.purge_name(UID))
ACCOUNT = ("serviceaccounts", "ns", names.purge_name(UID))
ROOT = "s3://b/runs"
DIGEST = "ab" * 32
OVER_SECONDS, WORK_SECONDS = 3600.0, 5.0


def snapshot(policy: str = "Delete", **status: Any) -> Body:
    """One that was taken of a run that is gone."""
    stamp = "2026-01-01T00:00:00Z"
    taken = {"status": "True", "reason": "SnapshotTaken", "message": "m"}
    taken |= {"lastTransitionTime": stamp, "observedGeneration": 1}
    location = f"{ROOT}/ns/{RUN_UID}/{names.SNAPSHOT_MANIFESTS}{DIGEST}.json"
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutSnapshot",
        "metadata": {"name": "best", "namespace": "ns", "uid": UID},
        "spec": {"source": {"run": {"name": "run"}}, "deletionPolicy": policy},
        "status": {
            "run": {"name": "run", "uid": RUN_UID},
            "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "default"},
            "storage": {"uri": ROOT},
            "location": {"object": {"uri": location}},
            "digest": f"blake3:{DIGEST}",
            "observedGeneration": 1,
            "conditions": [{"type": one, **taken} for one in ("Complete", "Finished", "Ready")],
            **status,
        },
    }


def runtime(**spec: Any) -> Body:
    said = {"allowedNamespaces": {"from": "All"}, "storage": {"uri": ROOT}, **spec}
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "ClusterRolloutRuntime"}
    return {**head, "metadata": {"name": "default"}, "spec": said}


@dataclass(slots=True, kw_only=True)
class Ended:
    """What came of it. ``purged_at`` and ``gone_at`` are seconds after the deletion; None: it did not happen."""

    purged_at: float | None = None
    gone_at: float | None = None
    jobs: list[Body] = field(default_factory=list)
    accounts: list[Body] = field(default_factory=list)
    events: list[Body] = field(default_factory=list)
    conditions: list[tuple[str, str]] = field(default_factory=list)
    num_calls: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.events]


@dataclass(slots=True, kw_only=True)
class Promises:
    broken: list[str] = field(default_factory=list)

    def fail(self, words: str) -> None:
        self.broken.append(words)


class Nobody:
    """No coordinator answers: the run is gone."""

    def post(self, url: str, **_: Any) -> Exchange:
        async def answer() -> Response:
            raise OSError("nobody is there")

        return Exchange(answer)


class PurgeTheatre:
    """A cluster with one snapshot, and operators that come and go. ``job`` says what becomes of a Job: its words, or None for never."""

    def __init__(
        self,
        chaos: Chaos,
        draw: random.Random,
        objects: list[Body],
        job: Any,
        acts: Any,
        adopts: Body | None,
    ) -> None:
        self.adopts = adopts
        self.chaos, self.draw, self.objects, self.job, self.acts = chaos, draw, objects, job, acts
        self.loop = asyncio.get_running_loop()
        self.end, self.promises = Ended(), Promises()
        self.model = ModelObjects(now=self.stamp, judge=self.judge, changed=self.changed)
        self.sessions: list[ModelSession] = []
        self.tasks: list[asyncio.Task] = []
        self.deleted_at = 0.0
        self.process = Process("nobody")
        self.process.kill()

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time())

    def stamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def say(self, words: str) -> None:
        self.end.log.append(f"{self.loop.time():9.3f} {words}")

    def since(self) -> float:
        return self.loop.time() - self.deleted_at

    def judge(self, write: Any) -> None:
        if write.verb == "create" and write.body is not None:
            found = {"Job": self.end.jobs, "Event": self.end.events}.get(write.body["kind"])
            if write.place not in self.model.objects and found is not None:
                found.append(write.body)

    def changed(self, change: Change) -> None:
        if change.place == PLACE and change.after is None and self.end.gone_at is None:
            self.end.gone_at = self.since()
        if change.place == PLACE and change.after is not None:
            for one in change.after.get("status", {}).get("conditions", ()):
                if one["type"] == "Purged" and (one["status"], one["reason"]) not in (
                    self.end.conditions
                ):
                    self.end.conditions.append((one["status"], one["reason"]))
        for session in self.sessions:
            session.news(change)

    def open_operator(self) -> None:
        self.say("an operator begins")
        self.process = Process("operator")
        self.process.spawn(self._operate(self.process))

    async def _operate(self, process: Process) -> None:
        clocks = Clocks(now=self.now, monotonic=self.loop.time, noise=self.draw.random)
        session = ModelSession(
            model=self.model,
            chaos=self.chaos,
            draw=self.draw,
            process=process,
            say=self.say,
            outlives=lambda work: self.tasks.append(self.loop.create_task(work, context=_NOBODY)),
        )
        self.sessions = [session]
        leader = build_leader(session, "a", clocks, elects=False)
        await run_manager(build_manager(session, Nobody(), clocks, leader), process)
        self.promises.fail("a part of the operator has ended")

    async def control_jobs(self) -> None:
        """The Job controller, and what its pods do."""
        while True:
            await asyncio.sleep(1.0)
            place, live = next(self.model.of_kind("jobs", "ns"), (JOB, None))
            if live is None or self.job is None or live.get("status"):
                continue
            await asyncio.sleep(WORK_SECONDS)
            kind, words = self.job
            if kind == "Complete":
                self.end.purged_at = self.since()
            self._make_pod(live, kind, words)
            if kind != "Error":
                ended = [{"type": kind, "status": "True", "message": "m"}]
                self.model.merge("jobs", place, {"status": {"conditions": ended}}, "status")
            else:
                self.model.merge("jobs", place, {"status": {"failed": 1}}, "status")

    def _make_pod(self, job: Body, kind: str, words: str) -> None:
        code = 0 if kind == "Complete" else 1
        name = job["metadata"]["name"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "controller": True}
        owner["uid"] = job["metadata"]["uid"]
        labels = {"batch.kubernetes.io/job-name": name}
        state = {"terminated": {"exitCode": code, "message": words}}
        meta = {"name": "pod-1", "namespace": "ns", "labels": labels, "ownerReferences": [owner]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}}
        pod["status"] = {"containerStatuses": [{"name": "purge", "state": state}]}
        if ("pods", "ns", "pod-1") not in self.model.objects:
            self.model.create("jobs", ("pods", "ns", "pod-1"), pod)

    async def play(self) -> None:
        for body in self.objects:
            plural = f"{body['kind'].lower()}s"
            meta = body["metadata"]
            place = (plural, meta.get("namespace", ""), meta["name"])
            self.model.create("kubectl", place, body)
        secret = build_secret(SYSTEM, b"k" * KEY_BYTES)
        self.model.create("kubectl", ("secrets", SYSTEM, SECRET_NAME), secret)
        self.tasks.append(self.loop.create_task(self.control_jobs()))
        at_call, self.chaos.at_call = self.chaos.at_call, -1
        self.open_operator()
        await asyncio.sleep(20.0)
        self.chaos.at_call, self.chaos.num_calls = at_call, 0
        self.deleted_at = self.loop.time()
        acts = dict(self.acts)
        if self.adopts:
            self.model.create("kubectl", PLACE, self.adopts)
        else:
            self.model.delete("kubectl", PLACE)
        while self.since() < OVER_SECONDS and not self._is_over():
            if not self.process.alive:
                await asyncio.sleep(self.draw.uniform(0.1, 20.0))
                self.open_operator()
            for at in [one for one in acts if one <= self.since()]:
                acts.pop(at)(self.model)
            await asyncio.sleep(0.5)
        await asyncio.sleep(30.0)
        self.end.accounts = [self.model.objects[ACCOUNT]] if ACCOUNT in self.model.objects else []
        self.end.num_calls = self.chaos.num_calls
        self.end.status = self.model.objects.get(PLACE, {}).get("status", {})

    def _is_over(self) -> bool:
        if not self.adopts:
            return self.end.gone_at is not None
        said = self.model.objects[PLACE].get("status", {}).get("conditions", ())
        return any(one["type"] == "Finished" for one in said)


def play(
    *,
    objects: list[Body] | None = None,
    job: tuple[str, str] | None = ("Complete", "1 snapshots and 3 objects removed"),
    kind: str = "",
    at_call: int = -1,
    acts: dict[float, Any] | None = None,
    adopts: Body | None = None,
) -> Ended:
    """One life, with one fault of ``kind`` at a call after the deletion; or after ``adopts`` is made, if that is given."""
    draw = random.Random(f"purge {kind} {at_call}")
    chaos = Chaos(draw=draw, at_call=at_call, kinds=(kind,))
    found: list[Ended] = []

    async def work() -> None:
        made = [runtime(), snapshot()] if objects is None else objects
        theatre = PurgeTheatre(chaos, draw, made, job, acts or {}, adopts)
        ear.theatre = theatre  # type: ignore[assignment]
        try:
            await theatre.play()
        finally:
            ear.theatre = None
            theatre.end.broken = theatre.promises.broken
            found.append(theatre.end)

    with heard() as ear, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        run_virtual(work, draw)
    return found[0]

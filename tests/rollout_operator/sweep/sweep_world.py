"""A sweep at a model of an API server: runs are as the test says, the operator may die at any write."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from model_objects import Answer, Body, ModelObjects

from rollout_operator.controller.clocks import Clocks
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.errors import Conflict, KubeError, NotFound, Refused
from rollout_operator.kube.resources import OWN_KINDS
from rollout_operator.run.events import Poster
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.status import StatusWriter
from rollout_operator.sweep.controller import SweepController

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PERSON, OPERATOR = "somebody", "the operator"
KEY = Key(namespace="ns", name="rates", kind="RolloutSweep")
PLACE = ("rolloutsweeps", "ns", "rates")
RATE = "train.optimizer.adamw.learningRate"
TEMPLATE: Body = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 400,
    },
}
SPEC: Body = {
    "parameters": [{"field": RATE, "values": ["1e-5", "3e-5", "1e-4"]}],
    "parallelism": 3,
    "template": {"spec": TEMPLATE},
}
HALVED: Body = {"earlyStopping": {"halving": {"firstStep": 20, "factor": 3}}}
_ERRORS = {404: NotFound, 409: Conflict, 422: Refused}


class Killed(Exception):  # noqa: N818 - what happens to an operator
    """The operator is no more."""


class Client:
    """The verbs that sweeps use. The operator dies at write ``dies_at``: before it, or with ``after`` once it is done."""

    def __init__(self, model: ModelObjects) -> None:
        self.model, self.dies_at, self.after, self.writes = model, 0, False, 0
        self.refuses: dict[str, Exception] = {}
        """By verb and name."""

    async def create(self, body: Body, resource: Any, *, manager: str) -> Body:
        place = (resource.plural, body["metadata"]["namespace"], body["metadata"]["name"])
        return self._write("create", place, lambda: self.model.create(OPERATOR, place, body))

    async def merge(
        self, body: Body, resource: Any, namespace: str, name: str, *, manager: str
    ) -> Body:
        place = (resource.plural, namespace, name)
        return self._write("patch", place, lambda: self.model.merge(OPERATOR, place, body))

    async def apply(
        self, body: Body, resource: Any, *, manager: str, force: bool, subresource: str
    ) -> Body:
        place = (resource.plural, body["metadata"]["namespace"], body["metadata"]["name"])
        return self._write(
            subresource, place, lambda: self.model.apply(OPERATOR, place, body, subresource)
        )

    def _write(self, verb: str, place: tuple[str, str, str], act: Any) -> Body:
        tells = place[0] == "events"  # to die at one is to die between two other writes
        self.writes += not tells
        dies = not tells and self.writes == self.dies_at
        if dies and not self.after:
            raise Killed
        if (error := self.refuses.get(f"{verb} {place[2]}")) is not None:
            raise error
        try:
            answer = act()
        except Answer as found:
            error_type = _ERRORS.get(found.status, KubeError)
            raise error_type(f"{verb} {place}", found.status, found.message) from found
        if dies:
            raise Killed
        return answer


class World:
    """One sweep; every look is that of a new operator, which remembers nothing."""

    def __init__(self, **spec: Any) -> None:
        self.now = BEGIN
        self.made: list[str] = []
        self.model = ModelObjects(now=self._render_now, judge=self._judge)
        self.client = Client(self.model)
        self.again: float | None = None
        body = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSweep"}
        meta = {"name": "rates", "namespace": "ns"}
        wanted = copy.deepcopy({**SPEC, **spec})
        self.model.create(PERSON, PLACE, {**body, "metadata": meta, "spec": wanted})

    def _render_now(self) -> str:
        return self.now.isoformat()

    def _judge(self, write: Any) -> None:
        is_new = write.verb == "create" and write.who == OPERATOR and write.live is None
        if is_new and write.place[0] != "events":
            self.made.append(write.place[2])

    # -- the operator ------------------------------------------------------------------------------------

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self._controller().reconcile(KEY)

    async def settle(self, looks_max: int = 40) -> None:
        """Look until nothing more is to be done at once."""
        for _ in range(looks_max):
            self.again = await self._controller().reconcile(KEY)
            if self.again is None or self.again >= 1:
                return
        raise AssertionError("the operator does not come to rest")

    async def look_killed(self, write: int, *, after: bool) -> bool:
        """Whether the operator got as far as this write, at which it died."""
        self.client.writes, self.client.dies_at, self.client.after = 0, write, after
        try:
            await self.settle()
        except Killed:
            return True
        finally:
            self.client.dies_at = 0
        return False

    def _controller(self) -> SweepController:
        self.now += timedelta(seconds=1)
        store, queue = RunStore(), KeyQueue()
        for resource in OWN_KINDS:
            for _, live in self.model.of_kind(resource.plural):
                store.put_object(resource.kind, copy.deepcopy(live))
        client: Any = self.client
        clocks = Clocks(now=lambda: self.now)
        poster = Poster(client=client, instance="one", clocks=clocks)
        writer = StatusWriter(client=client, store=store, queue=queue, poster=poster, clocks=clocks)
        return SweepController(
            client=client, store=store, queue=queue, send=writer.send, poster=poster, clocks=clocks
        )

    # -- runs --------------------------------------------------------------------------------------------

    def run(self, number: int) -> Body:
        return self.model.get(("rolloutruns", "ns", f"rates-{number:03d}"))

    def runs(self) -> dict[str, Body]:
        return {place[2]: live for place, live in self.model.of_kind("rolloutruns")}

    def report(self, number: int | str, step: Any, reward: Any) -> None:
        """The run's coordinator says how far it is."""
        said = {"step": step, **({} if reward is None else {"rewardMean": reward})}
        self._say(number, {"progress": said})

    def end(self, number: int | str, *, well: bool = True) -> None:
        kind = "Complete" if well else "Failed"
        reason = "Succeeded" if well else "OutOfMemory"
        head = {"status": "True", "reason": reason, "message": "so it went"}
        self._say(number, {"conditions": [{"type": one, **head} for one in (kind, "Finished")]})

    def _say(self, number: int | str, status: Body) -> None:
        self.model.merge("the run", self._place(number), {"status": status}, "status")

    def _place(self, number: int | str) -> tuple[str, str, str]:
        place = f"{number:03d}" if isinstance(number, int) else number
        return "rolloutruns", "ns", f"rates-{place}"

    def delete(self, number: int | str) -> None:
        self.model.drop(self._place(number))

    def put(
        self, name: str, plural: str = "rolloutruns", kind: str = "RolloutRun", **meta: Any
    ) -> None:
        """A run, or another object, of somebody else."""
        body = {"apiVersion": "rollout.dev/v1alpha1", "kind": kind, "spec": {}}
        named = {"name": name, "namespace": "ns", **meta}
        self.model.create(PERSON, (plural, "ns", name), {**body, "metadata": named})

    # -- snapshots that forks begin with -----------------------------------------------------------------

    def snapshot(self, number: int) -> Body:
        return self.model.get(("rolloutsnapshots", "ns", f"rates-f{number:03d}"))

    def save(self, number: int) -> None:
        """The winner's coordinator has taken the snapshot of a fork."""
        head = {"status": "True", "reason": "SnapshotTaken", "message": "m"}
        conditions = [{"type": one, **head} for one in ("Complete", "Finished", "Ready")]
        location = {"object": {"uri": "s3://runs/ns/u/snapshots/manifests/0.json"}}
        self.say_snapshot(number, {"conditions": conditions, "location": location})

    def say_snapshot(self, number: int, status: Body) -> None:
        place = ("rolloutsnapshots", "ns", f"rates-f{number:03d}")
        if place in self.model.objects:
            self.model.merge("the run", place, {"status": status}, "status")

    # -- suspension --------------------------------------------------------------------------------------

    def suspend(self, *, lifted: bool = False) -> None:
        """Somebody suspends the sweep, or lets it go on."""
        self.model.merge(PERSON, PLACE, {"spec": {"suspend": not lifted}})

    def set_run(self, number: int | str, *, suspended: bool) -> None:
        """Somebody suspends a run by hand, or resumes it."""
        self.model.merge(PERSON, self._place(number), {"spec": {"suspend": suspended}})

    def rest(self) -> None:
        """Pods of suspended runs go, those of others come."""
        for name, live in self.runs().items():
            is_suspended = live["spec"].get("suspend") is True
            head = {"type": "Suspended", "status": "True", "reason": "Suspended", "message": "m"}
            conditions = [
                one
                for one in live.get("status", {}).get("conditions", ())
                if one["type"] != "Suspended"
            ]
            self._say(
                name.removeprefix("rates-"), {"conditions": conditions + [head] * is_suspended}
            )

    def suspended(self) -> list[str]:
        return [n for n, one in self.runs().items() if one["spec"].get("suspend") is True]

    def events(self) -> list[tuple[str, str]]:
        """Reason and note of each event, in the order in which they were posted."""
        return [(one["reason"], one["note"]) for _, one in self.model.of_kind("events")]

    # -- what is said ------------------------------------------------------------------------------------

    @property
    def status(self) -> Body:
        return self.model.get(PLACE).get("status", {})

    def entry(self, number: int) -> Body:
        return self.status["runs"][number]

    def said(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition; two empty texts where it is not there."""
        for one in self.status["conditions"]:
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""

    def forget(self) -> None:
        """Somebody empties the status."""
        live = self.model.get(PLACE)
        live["status"] = {}
        self.model.replace(PERSON, PLACE, live)

    def outcomes(self) -> list[str | None]:
        return [one.get("outcome") for one in self.status["runs"]]

"""An endpoint in memory: what the operator applies is there, and Deployments come up as the test says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from rollout_api import names
from rollout_operator.cache.children import parse_child
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.endpoint.controller import EndpointController
from rollout_operator.errors import Conflict, NotFound
from rollout_operator.kube.resources import resource_of
from rollout_operator.run.events import Poster
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.render.inputs import Platform

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key(namespace="ns", name="chat", kind="RolloutEndpoint")
UID = "uid-0001"
PLATFORM = Platform(worker_image="worker:1", vllm_image="vllm:1")
SPEC: dict[str, Any] = {"model": {"uri": "rollout://tiny-adder"}, "engine": {"embedded": {}}}
OTHER = {"uri": "rollout://tiny-qwen2"}
LATE = "timed out progressing"
SIGNER = "ed25519:" + "0" * 64


class World:
    """One endpoint; ``look`` lets a new operator, which remembers nothing, act once."""

    def __init__(self, *, runtime: dict[str, Any] | None = None, **spec: Any) -> None:
        self.spec = {**SPEC, **spec}
        self.runtime = {} if runtime is None else runtime
        self.status: dict[str, Any] = {}
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.secrets: set[str] = set()
        self.runs: dict[str, dict[str, Any]] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        """The status of each."""
        self.pods: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.job_pods: list[dict[str, Any]] = []
        self.generation, self.version = 1, 10
        self.moment = BEGIN
        self.served = {"ScaledObject", "HTTPRoute"}
        self.broken: dict[str, Exception] = {}
        self.writes = 0

    # -- what a person does ---------------------------------------------------------------------------

    def edit(self, **spec: Any) -> None:
        self.spec, self.generation = {**self.spec, **spec}, self.generation + 1

    def run(self, name: str, **status: Any) -> str:
        """A RolloutRun of this name, in the place of one that had it; its UID."""
        self.version += 1
        begun = {"model": {"uri": "rollout://tiny-adder"}}
        live = _object(name, begun, uid=f"run-{self.version}")
        self.runs[name] = {**live, "status": status}
        return live["metadata"]["uid"]

    def succeed(self, name: str, best: str, root: str = "s3://runs/team") -> str:
        """A new run of this name that has ended well: the URI of the model ``best`` (64 hex) that it has handed on."""
        uid = self.run(name)
        uri = f"{root}/ns/{uid}/blake3/{best[:2]}/{best}"
        saved = {"weightsURI": uri, "weightsDigest": f"blake3:{best}"}
        handed = {"name": "step-000004", "step": 4, "modelURI": uri, **saved}
        done = {"type": "Finished", "status": "True", "reason": "Succeeded"}
        self.runs[name]["status"] = {"conditions": [done], "best": handed, "lastSnapshot": handed}
        return uri

    # -- what a cluster does --------------------------------------------------------------------------

    def deployments(self) -> dict[str, dict[str, Any]]:
        return {name: one for (kind, name), one in self.objects.items() if kind == "Deployment"}

    def come_up(self, *wanted: str, ready: int | None = None) -> None:
        """Pods of these Deployments (of all of them) become ready, all of them or ``ready`` of each."""
        for name, live in self.deployments().items():
            if wanted and name not in wanted:
                continue
            replicas = live["spec"]["replicas"]
            num = replicas if ready is None else min(ready, replicas)
            live["status"] = {
                "observedGeneration": live["metadata"]["generation"],
                "replicas": replicas,
                "updatedReplicas": replicas,
                "readyReplicas": num,
            }
            self._touch(live)

    def be_late(self, name: str) -> None:
        """The Deployment's controller says that it took too long."""
        live = self.deployments()[name]
        condition = {
            "type": "Progressing",
            "status": "False",
            "reason": "ProgressDeadlineExceeded",
            "message": LATE,
        }
        live["status"] = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": live["spec"]["replicas"],
            "updatedReplicas": live["spec"]["replicas"],
            "conditions": [condition],
        }
        self._touch(live)

    def end_job(self, answer: str, *, failed: bool = False) -> None:
        """The newest Job is over, and its pod has said so."""
        job = list(self.jobs.values())[-1]
        kind = "Failed" if failed else "Complete"
        job["status"] = {"conditions": [{"type": kind, "status": "True"}]}
        ended = {"exitCode": int(failed), "message": answer}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
        self.job_pods = [
            {
                "metadata": {
                    "name": "measure-x",
                    "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}],
                },
                "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
            }
        ]

    def find(self, *figures: tuple[float, float]) -> None:
        """The newest Job has measured ``figures``: value and low end of each evaluation, in order."""
        order = json.loads(self.order()["value"])
        found = [
            {
                "name": one["name"],
                "metric": one.get("gate", {}).get("metric", "accuracy"),
                "value": repr(value),
                "low": repr(low),
                "high": repr(value),
                "numPrompts": 20,
            }
            for one, (value, low) in zip(order["evaluations"], figures, strict=True)
        ]
        self.end_job(json.dumps(found))

    def watch(self, candidate: dict[str, Any], serving: dict[str, Any]) -> None:
        """The newest Job has seen these two sides of a canary."""
        self.end_job(json.dumps({"candidate": candidate, "serving": serving}))

    def canary(self) -> dict[str, Any]:
        """What servers are told of a candidate."""
        return json.loads(self.objects["ConfigMap", "chat-canary"]["data"]["canary.json"])

    def order(self) -> dict[str, Any]:
        """The variable with the newest Job's order."""
        [container] = list(self.jobs.values())[-1]["spec"]["template"]["spec"]["containers"]
        return container["env"][-1]

    def _touch(self, live: dict[str, Any]) -> None:
        self.version += 1
        live["metadata"]["resourceVersion"] = str(self.version)

    # -- what the operator does -----------------------------------------------------------------------

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self._look()

    async def look_killed(self, write: int) -> bool:
        """A look of an operator that is killed at its write of this number; 0: at none. Whether it was."""
        left, kept = [write], (self._store, self.merge, self.delete)

        def count():
            left[0] -= 1
            if left[0] == 0:
                raise SystemError("killed")

        def stored(*arguments):
            count()
            return kept[0](*arguments)

        async def merged(*arguments, **named):
            count()
            return await kept[1](*arguments, **named)

        async def deleted(*arguments, **named):
            count()
            await kept[2](*arguments, **named)

        self._store, self.merge, self.delete = stored, merged, deleted
        try:
            await self.look()
        except SystemError:
            return True
        finally:
            self._store, self.merge, self.delete = kept
        return False

    async def _look(self) -> None:
        store = RunStore()
        store.put_object(
            "ClusterRolloutRuntime",
            _object(
                "default", {"allowedNamespaces": {"from": "All"}, **self.runtime}, namespace=""
            ),
        )
        store.put_object("RolloutEndpoint", self._endpoint())
        for live in self.runs.values():
            store.put_object("RolloutRun", live)
        for name, status in self.snapshots.items():
            store.put_object("RolloutSnapshot", {**_object(name, {}, uid=name), "status": status})
        for (kind, _), live in self.objects.items():
            store.put(resource_of(kind), live)
        controller = EndpointController(
            client=self,
            store=store,
            queue=KeyQueue(),
            platform=lambda: PLATFORM,
            send=self._send,
            poster=Poster(client=self, instance="op", clocks=_Clock(self)),
            trusted=_trusted,
            served=lambda: self.served,
            clocks=_Clock(self),
        )
        self.again = await controller.reconcile(KEY)
        self.moment += timedelta(seconds=1)

    def _endpoint(self) -> dict[str, Any]:
        live = _object("chat", self.spec, uid=UID)
        live["metadata"] |= {"generation": self.generation, "resourceVersion": str(self.version)}
        return {**live, "status": self.status}

    async def _send(self, stored: Any, status: dict[str, Any]) -> None:
        self.status = status
        self.writes += 1

    # -- the API server, as far as it is asked --------------------------------------------------------

    async def get(self, resource, namespace, name, *, metadata_only=False):
        if resource.kind == "Secret" and name in self.secrets:
            return {"metadata": {"name": name}}
        if resource.kind == "Job" and name in self.jobs:
            return self.jobs[name]
        if (found := self.objects.get((resource.kind, name))) is not None:
            return found
        raise NotFound(f"get {name}", 404, "none")

    async def list(self, resource, namespace=None, **parameters):
        assert (resource.kind, namespace) == ("Pod", "ns")
        if parameters["labelSelector"].startswith("batch.kubernetes.io/job-name="):
            return {"items": self.job_pods}
        assert parameters["labelSelector"].startswith("rollout.dev/endpoint=chat")
        return {"items": self.pods}

    async def apply_new(self, body, resource, *, manager):
        self._break(resource)
        if (resource.kind, body["metadata"]["name"]) in self.objects:
            raise Conflict("apply", 409, "is there")
        return self._store(resource, body, f"uid-{self.version}")

    async def apply(self, body, resource, *, manager, force, subresource=""):
        self._break(resource)
        known = self.objects[resource.kind, body["metadata"]["name"]]
        assert body["metadata"]["resourceVersion"] == known["metadata"]["resourceVersion"]
        return self._store(resource, body, known["metadata"]["uid"], known)

    async def merge(self, body, resource, namespace, name, *, manager, subresource=""):
        live = self.objects[resource.kind, name]
        live["spec"] = {**live["spec"], **body.get("spec", {})}
        meta = live["metadata"]
        for key, value in body.get("metadata", {}).get("annotations", {}).items():
            meta["annotations"].pop(key, None)
            if value is not None:
                meta["annotations"][key] = value
        meta["generation"] += 1
        self._touch(live)
        self.writes += 1
        return live

    async def delete(self, resource, namespace, name, *, uid, resource_version, grace_seconds=None):
        live = self.objects.pop((resource.kind, name))
        assert (live["metadata"]["uid"], live["metadata"]["resourceVersion"]) == (
            uid,
            resource_version,
        )
        self.writes += 1

    async def create(self, body, resource, *, manager, name="", subresource=""):
        if resource.kind == "Job":
            self._break(resource)
            name = body["metadata"]["name"]
            assert name not in self.jobs
            self.version += 1
            meta = {**body["metadata"], "uid": f"job-{self.version}"}
            self.jobs[name] = {**body, "metadata": meta}
        else:
            self.events.append(body)
        return body

    def _break(self, resource: Any) -> None:
        if (error := self.broken.get(resource.kind)) is not None:
            raise error

    def _store(self, resource, body, uid, known=None):
        self.version += 1
        self.writes += 1
        generation = 1 if known is None else known["metadata"]["generation"] + 1
        meta = {
            **body["metadata"],
            "uid": uid,
            "resourceVersion": str(self.version),
            "generation": generation,
            "managedFields": [],
        }
        live = {**body, "metadata": meta, "status": (known or {}).get("status", {})}
        child = parse_child(resource.kind, live)
        assert child is not None, "an object of the endpoint"
        # as the server would say it: what was applied is what there is
        live["metadata"]["managedFields"] = [_managed(body)]
        self.objects[resource.kind, body["metadata"]["name"]] = live
        return live

    # -- what is looked at ----------------------------------------------------------------------------

    def selected(self) -> str:
        service = self.objects["Service", names.server_name("chat")]
        return service["spec"]["selector"][names.LABEL_REVISION]

    def condition(self, kind: str) -> tuple[str, str]:
        found = {one["type"]: one for one in self.status["conditions"]}
        return (found[kind]["status"], found[kind]["reason"]) if kind in found else ("", "")

    def said(self, kind: str) -> str:
        return next(one["message"] for one in self.status["conditions"] if one["type"] == kind)

    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.events]


async def _trusted() -> tuple[str, ...]:
    return (SIGNER,)


class _Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.moment

    def monotonic(self) -> float:
        return (self._world.moment - BEGIN).total_seconds()

    def noise(self) -> float:
        return 0.5


def _object(name, spec, *, namespace="ns", uid="uid-rt"):
    meta = {"name": name, "uid": uid, "resourceVersion": "1", "generation": 1}
    created = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    inside = {"namespace": namespace} if namespace else {}
    return {"metadata": {**meta, **created, **inside}, "spec": spec}


def _managed(body: dict[str, Any]) -> dict[str, Any]:
    fields = {f"f:{key}": {} for key in body if key not in ("apiVersion", "kind", "metadata")}
    meta = {
        f"f:{key}": {}
        for key in body["metadata"]
        if key not in ("name", "namespace", "uid", "resourceVersion")
    }
    return {
        "manager": names.MANAGER_CHILDREN,
        "operation": "Apply",
        "fieldsV1": {**fields, "f:metadata": meta},
    }

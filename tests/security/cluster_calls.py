"""An API server of ConfigMaps and Secrets in memory, that notes every write: for attacks on what the operator applies."""

from __future__ import annotations

from typing import Any

from worlds import RING, SPEC

from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.cache.store import Store
from rollout_operator.errors import Conflict, NotFound
from rollout_operator.run.apply import Applier
from rollout_operator.run.observe import find_unread, find_unverified
from rollout_operator.run.plan.model import Observed
from rollout_operator.run.plan.preconditions.checks import resolve_spec
from rollout_operator.run.tls import Authorities

UID = "uid-0001"


class ApiServer:
    """Objects by kind and name, as far as the applier asks; ``written`` are paths with their bodies."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {(one["kind"], one["metadata"]["name"]): one for one in objects}
        self.written: list[tuple[str, str, Any]] = []
        self.version = 100

    async def get(self, resource, _namespace, name, **_):
        try:
            return self.objects[resource.kind, name]
        except KeyError as error:
            raise NotFound(f"get {name}", 404, "not found") from error

    async def list(self, *_, **__):
        """The run, as ``look`` shows it at its first attempt."""
        return {"items": [{"metadata": {"uid": UID, "generation": 1}, "status": {"attempt": 1}}]}

    async def create(self, body, resource, **_):
        return self._take("create", body, resource)

    async def apply_new(self, body, resource, **_):
        return self._take("create", body, resource)

    async def apply(self, body, resource, **_):
        return self._take("apply", body, resource)

    async def merge(self, body, resource, namespace, name, **_):
        live = self.objects[resource.kind, name]
        self.written.append(("merge", resource.path(namespace, name), body))
        self.version += 1
        annotations = live["metadata"].get("annotations", {})
        annotations = annotations | body["metadata"].get("annotations", {})
        meta = {**live["metadata"], "annotations": annotations}
        meta["resourceVersion"] = str(self.version)
        made = {**live, "metadata": meta, "spec": {**live.get("spec", {}), **body.get("spec", {})}}
        self.objects[resource.kind, name] = made
        return made

    async def delete(self, resource, namespace, name, **_):
        self.written.append(("delete", resource.path(namespace, name), None))
        self.objects.pop((resource.kind, name), None)

    def _take(self, verb, body, resource):
        meta, place = body["metadata"], (body["kind"], body["metadata"]["name"])
        if verb == "create" and place in self.objects:
            raise Conflict(f"create {place}", 409, "is there")
        self.version += 1
        path = resource.path(meta["namespace"], meta["name"])
        self.written.append((verb, path, body))
        meta = {**meta, "uid": "/".join(place), "resourceVersion": str(self.version)}
        self.objects[place] = {**body, "metadata": meta}
        return self.objects[place]

    def paths(self):
        return [path for _, path, _ in self.written]


def build_applier(server: ApiServer, store: Store, ring=RING) -> Applier:
    return Applier(
        client=server,
        store=store,
        keys=lambda: "{}",
        keyring=lambda: ring,
        authorities=Authorities(client=server),
    )


def look(store: Store, status: dict[str, Any] | None = None, ring=RING, **changed) -> Observed:
    """The run as an operator with these keys sees it."""
    children = store.children("ns", UID)
    unverified, unread = find_unverified(children, ring), find_unread(children, ring)
    left_out = unverified | {(one.kind, one.name) for one in unread}
    known = {
        "name": "run",
        "namespace": "ns",
        "uid": UID,
        "generation": 1,
        "suspend": False,
        "spec": resolve_spec(SPEC, RuntimeSpec()),
        "status": RunStatus.model_validate(status or {}),
        "children": {place: one for place, one in children.items() if place not in left_out},
        "unverified": tuple(sorted(name for _, name in unverified)),
        "unread": unread,
        "pods": store.pods("ns", UID),
    }
    return Observed(**known | changed)

"""A model of the API server's memory: objects with versions, preconditions, server-side apply, a log for watches.

Lists are atomic and nothing is defaulted: what the operator writes is simple enough. Whoever writes says who it is; ``judge``
sees every write before it is done.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
Place = tuple[str, str, str]
"""Plural, namespace, name."""
VERSION_OF_NOTHING = "1"
IDENTITY = ("name", "namespace", "uid", "resourceVersion")


class Answer(Exception):  # noqa: N818 - an answer, not an error of ours
    """What the API server says instead of an object."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write as watches tell of it. ``before`` or ``after`` is None where there was, or is, nothing."""

    version: int
    place: Place
    before: Body | None
    after: Body | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write before it is done. ``live`` is what is there now."""

    who: str
    verb: str
    place: Place
    live: Body | None
    body: Body | None
    part: str = ""
    is_bound: bool = True
    """Whether it names the version of what it changes."""


@dataclass(slots=True, kw_only=True)
class ModelObjects:
    """All objects. ``changed`` is called after each write, ``judge`` before."""

    now: Callable[[], str]
    judge: Callable[[Write], None] = lambda _: None
    changed: Callable[[Change], None] = lambda _: None
    objects: dict[Place, Body] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    version: int = 10
    compacted: int = 0
    num_made: int = 0
    writer: str = ""
    """The replica of the operator whose write is being done."""

    # -- reading --------------------------------------------------------------------------------------

    def get(self, place: Place) -> Body:
        """Raises Answer 404."""
        if place not in self.objects:
            raise Answer(404, f"{'/'.join(place)} not found")
        return copy.deepcopy(self.objects[place])

    def of_kind(self, plural: str, namespace: str = "") -> Iterator[tuple[Place, Body]]:
        for place, live in list(self.objects.items()):
            if place[0] == plural and namespace in {"", place[1]}:
                yield place, live

    def compact(self) -> None:
        """Forget the log: who watches from before must list again."""
        self.log.clear()
        self.compacted = self.version

    # -- writing --------------------------------------------------------------------------------------

    def apply(self, who: str, place: Place, body: Body, part: str = "") -> Body:
        """Server-side apply, of an object or of its status."""
        live, meta = self.objects.get(place), body["metadata"]
        new = live is None and meta.get("resourceVersion") == VERSION_OF_NOTHING and not part
        if not new:
            self._require(place, live, meta)
        bound = "resourceVersion" in meta
        self.judge(
            Write(
                who=who, verb="apply", place=place, live=live, body=body, part=part, is_bound=bound
            )
        )
        if live is None:
            return self._make(place, _with_fields(_plain(body), who, body))
        if part == "status":
            return self._keep(place, _with_status(live, who, body["status"]))
        return self._keep(place, _applied(live, who, body))

    def create(self, who: str, place: Place, body: Body) -> Body:
        self.judge(
            Write(who=who, verb="create", place=place, live=self.objects.get(place), body=body)
        )
        if place in self.objects:
            raise Answer(409, f"{'/'.join(place)} already exists")
        return self._make(place, _plain(body))

    def replace(self, who: str, place: Place, body: Body) -> Body:
        live = self.objects.get(place)
        self._require(place, live, body["metadata"])
        self.judge(Write(who=who, verb="replace", place=place, live=live, body=body))
        return self._keep(place, copy.deepcopy(body))

    def merge(self, who: str, place: Place, body: Body, part: str = "") -> Body:
        """JSON merge patch; of ``part`` alone when there is one."""
        live, meta = self.objects.get(place), body.get("metadata", {})
        self._require(place, live, meta)
        bound = "resourceVersion" in meta
        self.judge(
            Write(
                who=who, verb="patch", place=place, live=live, body=body, part=part, is_bound=bound
            )
        )
        assert live is not None
        patch = {part: body[part]} if part else dict(body)
        if "metadata" in patch:
            patch["metadata"] = {k: v for k, v in meta.items() if k not in IDENTITY}
        return self._keep(place, _merged(_disowned(live, who, patch), patch))

    def delete(
        self, who: str, place: Place, conditions: Body | None = None, grace: int | None = None
    ) -> None:
        """Pods go in two steps unless ``grace`` is 0; what has finalizers waits for them."""
        live = self.objects.get(place)
        self._require(place, live, conditions or {})
        assert live is not None
        bound = "resourceVersion" in (conditions or {})
        self.judge(Write(who=who, verb="delete", place=place, live=live, body=None, is_bound=bound))
        waits = live["metadata"].get("finalizers") or (place[0] == "pods" and grace != 0)
        if not waits:
            self.drop(place)
        elif "deletionTimestamp" not in live["metadata"]:
            meta = {**live["metadata"], "deletionTimestamp": self.now()}
            self._keep(place, {**live, "metadata": meta})

    def drop(self, place: Place) -> None:
        """It is gone."""
        before = self.objects.pop(place)
        self.version += 1
        gone = copy.deepcopy(before)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell(Change(version=self.version, place=place, before=gone, after=None))

    def _require(self, place: Place, live: Body | None, meta: Body) -> None:
        uid, version = meta.get("uid"), meta.get("resourceVersion")
        if live is None:
            raise Answer(409 if uid else 404, f"{'/'.join(place)} not found")
        found = live["metadata"]
        if uid not in {None, found["uid"]} or version not in {None, found["resourceVersion"]}:
            raise Answer(409, f"{'/'.join(place)} was changed, or is another one")

    def _make(self, place: Place, body: Body) -> Body:
        self.num_made += 1
        uid = body["metadata"].pop("uid", None) or f"{place[0]}-{place[2]}-{self.num_made}"
        meta = {**body["metadata"], "uid": uid, "generation": 1, "creationTimestamp": self.now()}
        return self._put(place, None, {**body, "metadata": meta})

    def _keep(self, place: Place, after: Body) -> Body:
        before = self.objects[place]
        if after == before:
            return copy.deepcopy(before)
        if after.get("spec") != before.get("spec"):
            after["metadata"] = {
                **after["metadata"],
                "generation": before["metadata"].get("generation", 0) + 1,
            }
        made = self._put(place, before, after)
        meta = made["metadata"]
        if "deletionTimestamp" in meta and not meta.get("finalizers") and place[0] != "pods":
            self.drop(place)
        return made

    def _put(self, place: Place, before: Body | None, after: Body) -> Body:
        self.version += 1
        meta = after["metadata"]
        head = {k: meta[k] for k in ("name", "namespace", "uid") if k in meta}
        after["metadata"] = {**head, "resourceVersion": str(self.version)} | {
            k: v for k, v in meta.items() if k != "resourceVersion"
        }
        after = {k: after[k] for k in ("kind", "apiVersion")} | after
        self.objects[place] = after
        self._tell(Change(version=self.version, place=place, before=before, after=after))
        return copy.deepcopy(after)

    def _tell(self, change: Change) -> None:
        self.log.append(change)
        self.changed(change)


# -- server-side apply --------------------------------------------------------------------------------


def _plain(body: Body) -> Body:
    made = copy.deepcopy(body)
    made["metadata"].pop("resourceVersion", None)
    return made


def _owned_part(body: Body) -> Body:
    part = {k: v for k, v in body.items() if k not in ("apiVersion", "kind")}
    part["metadata"] = {k: v for k, v in body["metadata"].items() if k not in IDENTITY}
    return part


def _fields_of(value: Body) -> Body:
    return {f"f:{k}": _fields_of(v) if isinstance(v, dict) and v else {} for k, v in value.items()}


def _with_fields(live: Body, who: str, body: Body) -> Body:
    entry = {"manager": who, "operation": "Apply", "fieldsV1": _fields_of(_owned_part(body))}
    others = [one for one in live["metadata"].get("managedFields", ()) if one["manager"] != who]
    return {**live, "metadata": {**live["metadata"], "managedFields": [*others, entry]}}


def _applied(live: Body, who: str, body: Body) -> Body:
    part = copy.deepcopy(_owned_part(body))
    entries = live["metadata"].get("managedFields", ())
    old = next((one["fieldsV1"] for one in entries if one["manager"] == who), {})
    kept = _without(live, old, _fields_of(part))
    return _with_fields(_overlaid(kept, part), who, body)


def _without(live: Body, old: Body, new: Body) -> Body:
    """Fields that were owned and are applied no more go."""
    kept = dict(live)
    for path, below in old.items():
        name = path[2:]
        if name not in kept:
            continue
        if below and isinstance(kept[name], dict):
            kept[name] = _without(kept[name], below, new.get(path, {}))
            if not kept[name] and path not in new:
                del kept[name]
        elif path not in new:
            del kept[name]
    return kept


def _overlaid(live: Body, part: Body) -> Body:
    both = dict(live)
    for name, value in part.items():
        there = both.get(name)
        inner = isinstance(value, dict) and isinstance(there, dict)
        both[name] = _overlaid(there, value) if inner else value
    return both


def _with_status(live: Body, who: str, status: Body) -> Body:
    """The writer's fields are what it says now; those of others stay."""
    owned = live.get("x-status-owners", {}).get(who, [])
    kept = {k: v for k, v in live.get("status", {}).items() if k not in owned}
    owners = {**live.get("x-status-owners", {}), who: sorted(status)}
    return {**live, "status": {**kept, **copy.deepcopy(status)}, "x-status-owners": owners}


def _disowned(live: Body, who: str, patch: Body) -> Body:
    """Who changes a field takes it from whoever applied it."""
    entries = [
        one if one["manager"] == who else {**one, "fieldsV1": _less(one["fieldsV1"], patch)}
        for one in live["metadata"].get("managedFields", ())
    ]
    if not entries:
        return live
    return {**live, "metadata": {**live["metadata"], "managedFields": entries}}


def _less(fields: Body, patch: Body) -> Body:
    kept = dict(fields)
    for name, value in patch.items():
        below = kept.get(f"f:{name}")
        if below and isinstance(value, dict):
            kept[f"f:{name}"] = _less(below, value)
        if not below or not kept[f"f:{name}"] or not isinstance(value, dict):
            kept.pop(f"f:{name}", None)
    return kept


def _merged(live: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    both = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            both.pop(name, None)
        else:
            both[name] = _merged(both.get(name), value)
    return both

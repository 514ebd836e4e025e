"""Which fields of a live object are ours, and whether they still are as we wrote them. Pure.

Every child carries the digest of what was applied (``rollout.dev/applied``). The server's
``managedFields`` say which fields of the live object belong to our manager; the digest of just those
must be the same. Fields of others (an HPA's replicas, injected sidecars, defaults) do not count.
Whoever may write an object may write its ``managedFields``: a path that names nothing is no error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from rollout_api.names import ANNOTATION_APPLIED, MANAGER_CHILDREN

Document = dict[str, Any]
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_SCALARS = (str, int, float, type(None))


def seal(manifest: Document) -> Document:
    """The manifest with the digest of its own fields as an annotation."""
    meta = manifest["metadata"]
    digest = digest_of(_without_identity(manifest))
    annotations = {**meta.get("annotations", {}), ANNOTATION_APPLIED: digest}
    return {**manifest, "metadata": {**meta, "annotations": annotations}}


def owned_digest(live: Document, manager: str = MANAGER_CHILDREN) -> str:
    """Digest of the fields that ``manager`` applied, without the seal itself."""
    return digest_of(_without_identity(project(live, _fields_of(live, manager))))


def fields_digest(live: Document, manager: str = MANAGER_CHILDREN) -> str:
    """Digest of which fields ``manager`` owns, since when. Who changes one takes it: a change shows here."""
    entry = _entry_of(live, manager)
    return digest_of([entry.get("fieldsV1"), entry.get("time")])


def digest_of(document: Any) -> str:
    """Twenty hexadecimal digits of the canonical JSON."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def controller_uid(meta: Mapping[str, Any], group: str, kind: str) -> str:
    """UID of the object of this kind that controls another one; empty when none does."""
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] == kind:
            found = owner.get("apiVersion", "").partition("/")[0]
            return owner["uid"] if found == group else ""
    return ""


def _without_identity(document: Document) -> Document:
    body = {k: v for k, v in document.items() if k not in ("apiVersion", "kind", "status")}
    meta = {k: v for k, v in body.pop("metadata", {}).items() if k not in _IDENTITY}
    annotations = {k: v for k, v in meta.get("annotations", {}).items() if k != ANNOTATION_APPLIED}
    meta.pop("annotations", None)
    return {**body, "metadata": {**meta, **({"annotations": annotations} if annotations else {})}}


def _fields_of(live: Document, manager: str) -> Document:
    return _entry_of(live, manager).get("fieldsV1", {})


def _entry_of(live: Document, manager: str) -> Document:
    for entry in live["metadata"].get("managedFields", ()):
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and not entry.get("subresource")
        ):
            return entry
    return {}


def project(value: Any, fields: Mapping[str, Any]) -> Any:
    """The part of ``value`` that a ``fieldsV1`` set names."""
    inner = {path: below for path, below in fields.items() if path != "."}
    if not inner:
        return value
    if isinstance(value, dict):
        return {
            name: project(value[name], below) if below else value[name]
            for path, below in inner.items()
            if path.startswith("f:") and (name := path[2:]) in value
        }
    if isinstance(value, list):
        return list(_project_list(value, inner))
    return value


def _project_list(items: list[Any], fields: Mapping[str, Any]) -> Iterator[Any]:
    """The named items; by tables, because a container has dozens of variables."""
    tables: dict[tuple[str, ...], dict[Any, Any]] = {}
    for path, below in fields.items():
        keys, wanted = _parse_path(path)
        tables.setdefault(keys, {})[wanted] = below
    for item in items:
        for keys, table in tables.items():
            found = _identity_of(item, keys)
            if found in table:
                below = table[found]
                yield project(item, below) if below else item


@lru_cache(maxsize=4096)
def _parse_path(path: str) -> tuple[tuple[str, ...], Any]:
    """What a path into a list says of an item: its keys and their values, or (no keys) its value."""
    kind, _, text = path.partition(":")
    if kind not in {"k", "v"}:
        return (), path
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return (), path
    if kind == "v":
        return (), json.dumps(found)
    if not isinstance(found, dict) or not all(isinstance(one, _SCALARS) for one in found.values()):
        return (), path
    return tuple(found), tuple(found.values())


def _identity_of(item: Any, keys: tuple[str, ...]) -> Any:
    if not keys:
        return json.dumps(item)
    if not isinstance(item, dict):
        return None
    found = tuple(item.get(key) for key in keys)
    return found if all(isinstance(one, _SCALARS) for one in found) else None


def differences(wanted: Any, live: Any, path: str = "") -> Iterator[str]:
    """Paths at which ``live`` lacks or contradicts what is ``wanted``; more in ``live`` is fine."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for name, value in wanted.items():
            inner = f"{path}.{name}" if path else name
            if name in live:
                yield from differences(value, live[name], inner)
            elif value not in ({}, [], None):
                yield inner
    elif isinstance(wanted, list) and isinstance(live, list):
        yield from _list_differences(wanted, live, path)
    elif wanted != live:
        yield path


def _list_differences(wanted: list[Any], live: list[Any], path: str) -> Iterator[str]:
    named = {item["name"]: item for item in live if isinstance(item, dict) and "name" in item}
    for index, item in enumerate(wanted):
        name = item.get("name") if isinstance(item, dict) else None
        if name is not None:
            if name in named:
                yield from differences(item, named[name], f"{path}[{name}]")
            else:
                yield f"{path}[{name}]"
        elif index < len(live):
            yield from differences(item, live[index], f"{path}[{index}]")
        else:
            yield f"{path}[{index}]"


def writer_of(live: Document, manager: str = MANAGER_CHILDREN) -> str:
    """The manager, other than ours, that wrote the object last; empty when there is none."""
    others = [
        entry
        for entry in live["metadata"].get("managedFields", ())
        if entry.get("manager") != manager and not entry.get("subresource")
    ]
    if not others:
        return ""
    return max(others, key=lambda entry: entry.get("time", "")).get("manager", "")

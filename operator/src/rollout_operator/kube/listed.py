"""What kopf's lists show: an aiohttp middleware that looks at each page before kopf does.

kopf hands on what a list shows, object by object and some time later, and never says what a list does
not show any more. With this everything is known before the watch that follows is opened, and what was
deleted while a watch was too old is forgotten; it would be kept (and its children made) for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp

from rollout_operator.kube.resources import OWN_KINDS, Resource

log = logging.getLogger(__name__)

_RESOURCES = {one.plural: one for one in OWN_KINDS}


class Objects(Protocol):
    """Where objects of our kinds go."""

    def put_object(self, kind: str, live: Mapping[str, Any]) -> None:
        """An object as it is now."""

    def keep_objects(self, kind: str, namespace: str | None, uids: set[str], version: int) -> None:
        """After a list: everything else of this kind (and namespace) that is no newer is gone."""


class ListedObjects:
    """Hands every page of a list of our kinds to ``objects``."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._seen: dict[str, set[str]] = {}

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Read a page; aiohttp keeps its body, so that kopf reads it too."""
        response = await handler(request)
        path, query = request.url.path, request.url.query
        resource = _RESOURCES.get(path.rpartition("/")[2])
        if resource is not None and response.status == 200 and "watch" not in query:
            if "continue" not in query:
                self._seen[path] = set()
            self._take(resource, path, await response.json())
        return response

    def _take(self, resource: Resource, path: str, page: Mapping[str, Any]) -> None:
        seen = self._seen.setdefault(path, set())
        for live in page.get("items") or ():
            seen.add(live["metadata"]["uid"])
            self._put(resource, live)
        if not page["metadata"].get("continue"):
            version = int(page["metadata"]["resourceVersion"])
            shown = self._seen.pop(path)
            self._objects.keep_objects(resource.kind, _namespace_of(path), shown, version)

    def _put(self, resource: Resource, live: Mapping[str, Any]) -> None:
        """One object that cannot be read does not end the list of all others."""
        try:
            self._objects.put_object(resource.kind, live)
        except Exception:
            meta = live["metadata"]
            place = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
            log.exception("object not read object=%s %s", resource.plural, place)


def _namespace_of(path: str) -> str | None:
    _, found, after = path.partition("/namespaces/")
    return after.partition("/")[0] if found else None

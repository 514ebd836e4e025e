"""The few verbs the operator needs, on the shared aiohttp session.

Every write asks first whether it may (the Lease), every answer that is not 2xx becomes a named
error, every call has a timeout. Nothing is retried here: the queue does that, with back-off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from rollout_operator.errors import (
    Conflict,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    Outdated,
    Refused,
    Terminating,
    Unavailable,
)
from rollout_operator.kube.echoes import IsEcho, nothing_is_echo, read_event
from rollout_operator.kube.resources import Resource

Body = dict[str, Any]
MESSAGE_LENGTH_MAX = 1000
TERMINATING = "because it is being terminated"
UNKNOWN_FIELD = "field not declared in schema"
OUR_PATHS = "/apis/rollout.dev/"
UPGRADE = "the installed definitions are older than the operator: upgrade the chart rollout-crds"
LINE_BYTES_MAX = 8 << 20
VERSION_OF_NOTHING = "1"
"""etcd counts from 1 before it holds anything: its first object has version 2."""
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_ERRORS: Mapping[int, type[KubeError]] = {
    400: Refused,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: NotFound,
    409: Conflict,
    410: Gone,
    413: Refused,
    415: Refused,
    422: Refused,
}


class KubeClient:
    """Reads and writes objects. ``may_write`` raises NotLeader; ``count`` is told verb and status."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        server: str,
        *,
        may_write: Callable[[], None] = lambda: None,
        count: Callable[[str, int], None] = lambda _verb, _code: None,
    ) -> None:
        self._session = session
        self._server = server
        self._may_write = may_write
        self._count = count

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, metadata_only: bool = False
    ) -> Body:
        """One object. Raises NotFound."""
        headers = {"Accept": METADATA_ONLY} if metadata_only else {}
        return await self._call("get", resource.path(namespace, name), headers=headers)

    async def list(
        self, resource: Resource, namespace: str | None = None, **parameters: str
    ) -> Body:
        """A page of a collection, with its resourceVersion."""
        return await self._call("list", resource.path(namespace), parameters=parameters)

    async def read(self, path: str) -> Body:
        """A path that is no resource, such as ``/openid/v1/jwks``."""
        return await self._call("get", path)

    async def apply(
        self, body: Body, resource: Resource, *, manager: str, force: bool, subresource: str = ""
    ) -> Body:
        """Server-side apply. ``metadata.uid`` and ``resourceVersion`` in the body are preconditions.

        Without ``force`` an object that others made is never taken over: Conflict.
        """
        meta = body["metadata"]
        self._may_write()
        return await self._call(
            "apply",
            resource.path(meta.get("namespace"), meta["name"], subresource),
            method="PATCH",
            body=body,
            headers={"Content-Type": _APPLY},
            parameters={"fieldManager": manager, "force": str(force).lower()},
        )

    async def apply_new(self, body: Body, resource: Resource, *, manager: str) -> Body:
        """Server-side apply that only ever creates. Raises Conflict when there is anything of that name.

        Bound to a version that no object has: the API server creates what is not there, and refuses to touch
        what is. Unlike a POST it leaves the fields as applied, so that a later apply may take one away.
        """
        bound = {**body, "metadata": {**body["metadata"], "resourceVersion": VERSION_OF_NOTHING}}
        return await self.apply(bound, resource, manager=manager, force=False)

    async def create(
        self, body: Body, resource: Resource, *, manager: str, name: str = "", subresource: str = ""
    ) -> Body:
        """Create an object, or (with ``subresource``) post to one. Raises Conflict when it is there."""
        path = resource.path(body["metadata"].get("namespace"), name, subresource)
        self._may_write()
        return await self._call(
            "create", path, method="POST", body=body, parameters={"fieldManager": manager}
        )

    async def merge(
        self,
        body: Body,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        manager: str,
        subresource: str = "",
    ) -> Body:
        """JSON merge patch. ``metadata.uid`` and ``resourceVersion`` in the body are preconditions."""
        self._may_write()
        return await self._call(
            "patch",
            resource.path(namespace, name, subresource),
            method="PATCH",
            body=body,
            headers={"Content-Type": _MERGE},
            parameters={"fieldManager": manager},
        )

    async def replace(self, body: Body, resource: Resource, *, manager: str) -> Body:
        """Write a whole object that was read before: its resourceVersion is the precondition.

        Not guarded by the Lease: it is how the Lease itself is written.
        """
        path = resource.path(body["metadata"].get("namespace"), body["metadata"]["name"])
        return await self._call(
            "update", path, method="PUT", body=body, parameters={"fieldManager": manager}
        )

    async def create_unguarded(self, body: Body, resource: Resource, *, manager: str) -> Body:
        """Create the Lease."""
        path = resource.path(body["metadata"].get("namespace"))
        return await self._call(
            "create", path, method="POST", body=body, parameters={"fieldManager": manager}
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str,
        grace_seconds: int | None = None,
    ) -> None:
        """Delete exactly the object that was seen. One that is gone is deleted already.

        Raises Conflict for one that has changed since then, or has another uid.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        body: Body = {"preconditions": conditions, "propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        self._may_write()
        try:
            path = resource.path(namespace, name)
            await self._call("delete", path, method="DELETE", body=body)
        except NotFound:
            return

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        seconds_max: int,
        silent_seconds_max: float,
        is_echo: IsEcho = nothing_is_echo,
        **parameters: str,
    ) -> AsyncIterator[Body]:
        """Events of a collection until the server ends the stream. Raises Gone, or Unavailable.

        A stream without a word (bookmarks are words) for ``silent_seconds_max`` is dead: Unavailable.
        An event that ``is_echo`` comes as a bookmark.
        """
        query = {"watch": "true", "timeoutSeconds": str(seconds_max), **parameters}
        what = f"watch {resource.plural}"
        timeout = aiohttp.ClientTimeout(
            total=seconds_max + 15, sock_connect=10, sock_read=silent_seconds_max
        )
        url = self._server + resource.path(namespace)
        try:
            async with self._session.get(
                url, params=query, timeout=timeout, allow_redirects=False
            ) as response:
                self._count("watch", response.status)
                if response.status != 200:
                    raise _error(what, response, await response.text())
                async for line in _lines(response.content):
                    yield read_event(line, is_echo)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._count("watch", 0)
            raise Unavailable(what, 0, f"{type(error).__name__}: {error}") from error

    async def _call(
        self,
        verb: str,
        path: str,
        *,
        method: str = "GET",
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Body:
        sent = {"Content-Type": "application/json", **(headers or {})}
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        what = f"{verb} {path}"
        try:
            async with self._session.request(
                method,
                self._server + path,
                data=data,
                headers=sent,
                params=parameters,
                allow_redirects=False,
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count(verb, 0)
            raise Unavailable(what, 0, f"{type(error).__name__}: {error}") from error
        self._count(verb, response.status)
        if response.status >= 300:
            raise _error(what, response, text)
        try:
            return json.loads(text)
        except ValueError as error:
            raise Unavailable(what, response.status, f"not JSON: {text[:100]!r}") from error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length up to a bound; aiohttp's own reader stops at 64 KiB."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
        if len(rest) > LINE_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"one event has more than {LINE_BYTES_MAX} bytes")


def _error(what: str, response: aiohttp.ClientResponse, text: str) -> KubeError:
    try:
        message = str(json.loads(text).get("message") or text)
    except (ValueError, AttributeError):
        message = text
    message = message[:MESSAGE_LENGTH_MAX]
    if response.status == 403 and TERMINATING in message:
        return Terminating(what, response.status, message)
    if UNKNOWN_FIELD in message and OUR_PATHS in what:
        return Outdated(what, response.status, f"{UPGRADE} ({message})")
    if kind := _ERRORS.get(response.status):
        return kind(what, response.status, message)
    after = response.headers.get("Retry-After", "")
    return Unavailable(what, response.status, message, float(after) if after.isdigit() else None)


async def gather_bounded(tasks: list[Any], num_max: int) -> list[Any]:
    """Await all, at most ``num_max`` at once; the first error is raised after all have ended."""
    gate = asyncio.Semaphore(num_max)

    async def one(task: Any) -> Any:
        async with gate:
            return await task

    results = await asyncio.gather(*(one(task) for task in tasks), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results

"""The API server as the broker sees it: sandbox pods are created, listed by their label, and deleted, by the coordinator's account.

Nothing else is asked for, and the admission policy of the installation holds what is made to the runtime's template.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any, Literal, Protocol

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.coordinator.sandboxes.pool import PodSeen
from rollout.coordinator.status.api_server import TROUBLES, ApiServer
from rollout_api.worker import ProgressWriting

PODS_MAX = 2000
ENDED = frozenset({"Succeeded", "Failed"})
OUT_OF_MEMORY = "OOMKilled"
WHY_CHARACTERS_MAX = 300


class PodRefused(Exception):  # noqa: N818 - an answer
    """The API server did not do it."""


class PodApi(Protocol):
    """Where pods are made."""

    def keeping(self) -> AbstractAsyncContextManager[None]:
        """Within it, calls share connections."""
        ...

    async def create(self, manifest: Mapping[str, Any]) -> None:
        """Make a pod. Raises PodRefused."""
        ...

    async def list(self) -> dict[str, PodSeen]:
        """Every sandbox pod of the run by name. Raises PodRefused."""
        ...

    async def delete(self, name: str, uid: str) -> None:
        """Remove this very pod; one that is gone is no error. Raises PodRefused."""
        ...


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str = ""
    deletion_timestamp: str = ""


class _State(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


class _States(msgspec.Struct, frozen=True):
    waiting: _State | None = None
    terminated: _State | None = None


class _Container(msgspec.Struct, frozen=True):
    state: _States = msgspec.field(default_factory=_States)
    ready: bool = False


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[_Condition, ...] = ()
    containers: tuple[_Container, ...] = msgspec.field(default=(), name="containerStatuses")


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Pods(msgspec.Struct, frozen=True):
    items: tuple[_Pod, ...] = ()


def read_pods(body: bytes) -> dict[str, PodSeen]:
    """What a list says. Raises PodRefused for anything else."""
    try:
        found = msgspec.json.decode(body, type=_Pods)
    except UNREADABLE as error:
        raise PodRefused(f"the API server answered with no list of pods: {error}") from error
    return {one.metadata.name: _seen(one) for one in found.items}


def _seen(pod: _Pod) -> PodSeen:
    status = pod.status
    container = next(iter(status.containers), _Container())
    ended = container.state.terminated
    return PodSeen(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        address=status.pod_ip if container.ready else "",
        ended=status.phase in ENDED or ended is not None,
        past_memory=ended is not None and ended.reason == OUT_OF_MEMORY,
        going=bool(pod.metadata.deletion_timestamp),
        why=_why(status, container.state)[:WHY_CHARACTERS_MAX],
    )


def _why(status: _Status, state: _States) -> str:
    if state.terminated is not None:
        one = state.terminated
        return f"a sandbox pod ended: {one.reason} ({one.exit_code}) {one.message}".strip()
    if state.waiting is not None and state.waiting.message:
        return f"a sandbox pod does not start: {state.waiting.reason}: {state.waiting.message}"
    unmet = (one.message for one in status.conditions if one.status == "False" and one.message)
    return next((f"a sandbox pod waits: {one}" for one in unmet), status.reason)


class ApiPods:
    """The cluster's, by the coordinator's own account."""

    def __init__(self, api: ProgressWriting, namespace: str, selector: str) -> None:
        self._server, self._selector = ApiServer(api), selector
        self._url = f"{self._server.url}/api/v1/namespaces/{namespace}/pods"

    def keeping(self) -> AbstractAsyncContextManager[None]:
        """As ``PodApi.keeping``."""
        return self._server.keeping()

    async def create(self, manifest: Mapping[str, Any]) -> None:
        """As ``PodApi.create``."""
        await self._call("POST", self._url, body=msgspec.json.encode(manifest))

    async def list(self) -> dict[str, PodSeen]:
        """As ``PodApi.list``."""
        query = {"labelSelector": self._selector, "limit": str(PODS_MAX)}
        return read_pods(await self._call("GET", self._url, query=query))

    async def delete(self, name: str, uid: str) -> None:
        """As ``PodApi.delete``."""
        body = msgspec.json.encode({"preconditions": {"uid": uid}})
        await self._call("DELETE", f"{self._url}/{name}", body=body, gone=True)

    async def _call(
        self,
        method: Literal["GET", "POST", "DELETE"],
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        gone: bool = False,
    ) -> bytes:
        try:
            async with (
                self._server.session("application/json") as session,
                session.request(method, url, params=query, data=body) as answer,
            ):
                said = await answer.read()
        except TROUBLES as error:
            raise PodRefused(f"{type(error).__name__}: {error}") from error
        if answer.status < HTTPStatus.BAD_REQUEST:
            return said
        if gone and answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            return b""
        raise PodRefused(f"HTTP {answer.status}: {_message(said)}")


def _message(said: bytes) -> str:
    try:
        return msgspec.json.decode(said, type=_State).message[:WHY_CHARACTERS_MAX]
    except UNREADABLE:
        return said[:WHY_CHARACTERS_MAX].decode(errors="replace")

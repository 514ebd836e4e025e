"""The operator's HTTP session, answered by a model of the API server, with drawn delays and faults.

A request may be refused, be done and lose its answer, end the operator before or after it is done, or be done
long after the operator has died. A watch tells late, breaks, and forgets what is too old.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from model_objects import Answer, Body, Change, ModelObjects, Place
from virtual_time import Process

from rollout_operator.errors import NotLeader

OPERATOR = "rollout-operator"
REFUSALS = {"throttled": 429, "broken": 500, "away": 503, "conflict": 409, "forbidden": 403}
FAULTS = (*REFUSALS, "cut", "answer lost", "killed before", "killed after", "killed, done late")
LATE, FROZEN = "done late", "frozen before"
"""Where there are two replicas: by then the other one may lead."""
REPLICA_RATE = 0.1
FROZEN_SECONDS = (5.0, 45.0)
PACES = (-3.0, -0.5)
"""Powers of ten: seconds that a request takes on its way where chance mixes their order."""
WATCH_FAULTS = ("watch cut", "compacted", "events late")
LATE_SECONDS_MAX = 20.0  # short: virtual time, how late a request is done
BOOKMARK_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class Chaos:
    """What goes wrong: at most ``left`` times, each call or event with ``rate``. Counts what was met."""

    draw: random.Random
    rate: float = 0.0
    left: int = 0
    kinds: tuple[str, ...] = FAULTS
    watch_kinds: tuple[str, ...] = WATCH_FAULTS
    replica_kinds: tuple[str, ...] = ()
    replica_left: int = 0
    honest: bool = True
    """Whether the clocks of replicas go at one rate."""
    at_call: int | None = None
    num_calls: int = 0
    met: Counter[str] = field(default_factory=Counter)

    def for_call(self) -> str:
        self.num_calls += 1
        if self.at_call is not None:
            hit = self.num_calls == self.at_call
            return self._count(self.kinds[0]) if hit else ""
        return self._take(self.kinds)

    def for_watch(self) -> str:
        return self._take(self.watch_kinds)

    def for_replica(self) -> str:
        """What happens to a replica, of which ``replica_left`` are left, asked every now and then."""
        if self.replica_left <= 0 or self.draw.random() >= REPLICA_RATE:
            return ""
        self.replica_left -= 1
        return self._count(self.draw.choice(self.replica_kinds))

    def _take(self, kinds: tuple[str, ...]) -> str:
        if not kinds or self.left <= 0 or self.draw.random() >= self.rate:
            return ""
        self.left -= 1
        return self._count(self.draw.choice(kinds))

    def _count(self, kind: str) -> str:
        self.met[kind] += 1
        return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, taken apart."""

    method: str
    path: str
    place: Place
    part: str
    query: dict[str, str]
    body: Any


class Response:
    """As much of aiohttp's as the client reads."""

    def __init__(self, status: int, document: Any = None, headers: dict[str, str] | None = None):
        self.status = status
        self.headers = headers or {}
        self._text = json.dumps(document)
        self.content: Any = SimpleNamespace(iter_any=self._chunks)

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield self._text.encode()

    async def text(self) -> str:
        return self._text


class Exchange:
    """The context manager that a session's request is."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    async def __aenter__(self) -> Response:
        return await self._answer()

    async def __aexit__(self, *_: object) -> None:
        return


def _build_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True, kw_only=True)
class ModelSession:
    """One process's session. ``outlives`` runs what goes on when the process is dead.

    ``may_send`` is asked as a write leaves, as `kube.config.open_session` does it; who has none writes the Lease.
    """

    model: ModelObjects
    chaos: Chaos
    draw: random.Random
    process: Process
    say: Callable[[str], None]
    outlives: Callable[[Any], None]
    writer: str = ""
    may_send: Callable[[], None] | None = None
    sends: Callable[[str], None] = lambda _: None
    pace: random.Random | None = None
    """Draws how long each request takes, so that one overtakes another; None: all take about as long."""
    watches: list[asyncio.Event] = field(default_factory=list)
    hearing: asyncio.Event = field(default_factory=_build_set)
    """Cleared: watches are silent."""
    reaching: asyncio.Event = field(default_factory=_build_set)
    """Cleared: no request reaches the API server."""

    @property
    def is_guarded(self) -> bool:
        return self.may_send is not None

    def request(self, method: str, url: str, *, data=None, headers=None, params=None, **_: Any):
        request = parse_request(method, url, dict(params or {}), data)
        return Exchange(lambda: self._answer(request, dict(headers or {})))

    def get(self, url: str, *, params=None, **_: Any):
        request = parse_request("GET", url, dict(params or {}), None)
        return Exchange(lambda: self._watch(request))

    def news(self, _: Change) -> None:
        """Something was written: watches look."""
        for one in self.watches:
            one.set()

    async def _answer(self, request: Request, headers: dict[str, str]) -> Response:
        if request.path.startswith(POLICY_BINDINGS):
            return Response(404, {"message": "this cluster holds no sandbox pods"})
        await asyncio.sleep(self._way_seconds())
        await self._leave(request)
        fault = self.chaos.for_call()
        if fault:
            self.say(f"{fault}: {request.method} {request.path}")
        if fault in REFUSALS:
            after = {"Retry-After": "1"} if fault == "throttled" else {}
            return Response(REFUSALS[fault], {"message": fault}, after)
        if fault == "cut":
            raise aiohttp.ClientConnectionError("cut")
        if fault == "killed, done late":
            self.outlives(self._perform_late(request, headers))
        if fault.startswith("killed"):
            return await self._die(request, headers, performed=fault == "killed after")
        await self._hold_up(fault, request)
        response = self._perform(request, headers, writer="" if fault == LATE else self.writer)
        if fault == "answer lost":
            raise aiohttp.ServerDisconnectedError
        await asyncio.sleep(self.draw.uniform(0.0, 0.05))
        await self.process.gate()
        return response

    def _way_seconds(self) -> float:
        if self.pace is None:
            return self.draw.uniform(0.001, 0.05)
        return 10 ** self.pace.uniform(*PACES)

    async def _hold_up(self, fault: str, request: Request) -> None:
        if fault == FROZEN:
            self.process.freeze()
            frozen_seconds = self.draw.uniform(*FROZEN_SECONDS)
            asyncio.get_running_loop().call_later(frozen_seconds, self.process.thaw)
            await self._leave(request)
        if fault == LATE:
            await asyncio.sleep(self.draw.uniform(0.0, LATE_SECONDS_MAX))
            self.say(f"done late: {request.method} {request.path}")

    async def _leave(self, request: Request) -> None:
        """Raises what keeps a request from leaving: who was frozen is asked once more whether it may write."""
        await self.process.gate()
        if not self.reaching.is_set():
            raise aiohttp.ClientConnectionError("out of reach")
        if self.may_send is None or request.method == "GET":
            return
        try:
            self.may_send()
        except NotLeader as error:
            raise aiohttp.ClientConnectionError(str(error)) from error
        self.sends(f"{request.method} {request.path}")

    async def _die(self, request: Request, headers: dict[str, str], *, performed: bool) -> Response:
        if performed:
            self._perform(request, headers)
        self.process.kill()
        await asyncio.sleep(3600)
        raise AssertionError("a dead process goes on")

    async def _perform_late(self, request: Request, headers: dict[str, str]) -> None:
        await asyncio.sleep(self.draw.uniform(0.0, LATE_SECONDS_MAX))
        self.say(f"done late: {request.method} {request.path}")
        self._perform(request, headers)

    def _perform(self, request: Request, headers: dict[str, str], writer: str = "") -> Response:
        """``writer``: who wrote it a moment ago; empty where it is late, or its sender is dead."""
        self.model.writer = writer
        try:
            return Response(200, perform(self.model, request, headers))
        except Answer as answer:
            return Response(answer.status, {"message": answer.message})
        finally:
            self.model.writer = ""

    # -- watches ----------------------------------------------------------------------------------------

    async def _watch(self, request: Request) -> Response:
        await asyncio.sleep(self.draw.uniform(0.001, 0.02))
        response = Response(200)
        response.content = SimpleNamespace(iter_any=lambda: self._events(request))
        return response

    async def _events(self, request: Request) -> AsyncIterator[bytes]:
        seen, news = int(request.query["resourceVersion"]), asyncio.Event()
        self.watches.append(news)
        over = asyncio.get_running_loop().time() + float(request.query["timeoutSeconds"])
        try:
            while asyncio.get_running_loop().time() < over:
                if seen < self.model.compacted:
                    yield _line("ERROR", {"code": 410, "message": "too old"})
                    return
                found = [one for one in self.model.log if one.version > seen]
                for change in found:
                    seen = change.version
                    if line := told(change, request):
                        await self._delay(request)
                        await self._hear()
                        yield line
                if not found:
                    news.clear()
                    with_time = min(BOOKMARK_SECONDS, over - asyncio.get_running_loop().time())
                    if not await _within(news, max(0.0, with_time)):
                        await self._hear()
                        yield _bookmark(max(seen, self.model.compacted))
        finally:
            self.watches.remove(news)

    async def _hear(self) -> None:
        await self.hearing.wait()
        await self.process.gate()

    async def _delay(self, request: Request) -> None:
        """Before an event is told. Raises what breaks the stream."""
        fault = self.chaos.for_watch()
        if fault:
            self.say(f"{fault}: {request.path}")
        if fault == "compacted":
            self.model.compact()
        if fault in {"watch cut", "compacted"}:
            raise aiohttp.ClientPayloadError("cut")
        late = self.draw.uniform(1.0, 15.0) if fault == "events late" else 0.0
        await asyncio.sleep(late + self.draw.uniform(0.0, 0.1))


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def parse_request(method: str, url: str, query: dict[str, str], data: bytes | None) -> Request:
    path = urlsplit(url).path
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    plural, name, part = (*parts, "", "", "")[:3]
    return Request(
        method=method,
        path=path,
        place=(plural, namespace, name),
        part=part,
        query=query,
        body=json.loads(data) if data else None,
    )


POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/"
"""Nothing is drawn for these: the stories of a seed stay what they were."""
KEYS = {"keys": [{"kid": "1"}]}
PATHS: dict[str, Body] = {
    "/.well-known/openid-configuration": {"issuer": "https://cluster"},
    "/openid/v1/jwks": KEYS,
}


def perform(model: ModelObjects, request: Request, headers: dict[str, str]) -> Any:
    """Do it. Raises Answer."""
    plural, _, name = request.place
    if request.method == "GET" and request.path in PATHS:
        return PATHS[request.path]
    if request.method == "GET":
        return model.get(request.place) if name else list_page(model, request)
    who = request.query.get("fieldManager", OPERATOR)
    if request.method == "POST":
        if request.part == "token":
            return {"status": {"token": "t"}}
        made = request.body["metadata"]["name"]
        return model.create(who, (plural, request.place[1], made), request.body)
    if request.method == "PUT":
        return model.replace(who, request.place, request.body)
    if request.method == "DELETE":
        body = request.body
        model.delete(who, request.place, body["preconditions"], body.get("gracePeriodSeconds"))
        return {}
    if "merge" in headers["Content-Type"]:
        return model.merge(who, request.place, request.body, request.part)
    return model.apply(who, request.place, request.body, request.part)


def list_page(model: ModelObjects, request: Request) -> Body:
    plural, namespace, _ = request.place
    items = [one for _, one in model.of_kind(plural, namespace) if chosen(one, request.query)]
    return {"metadata": {"resourceVersion": str(model.version)}, "items": items}


def chosen(live: Body | None, query: dict[str, str]) -> bool:
    """Whether an object is one of those that are asked for."""
    if live is None:
        return False
    key, _, value = query.get("labelSelector", "").partition("=")
    if key and (live["metadata"].get("labels") or {}).get(key) != value:
        return False
    key, _, value = query.get("fieldSelector", "").partition("=")
    return not key or live["metadata"]["name"] == value


def told(change: Change, request: Request) -> bytes:
    """The event that a watch tells of a change; empty when it is none of its objects."""
    plural, namespace, _ = request.place
    if change.place[0] != plural or namespace not in {"", change.place[1]}:
        return b""
    was, is_now = chosen(change.before, request.query), chosen(change.after, request.query)
    if not was and not is_now:
        return b""
    if not is_now:
        assert change.before is not None
        meta = {**change.before["metadata"], "resourceVersion": str(change.version)}
        return _line("DELETED", {**change.before, "metadata": meta})
    return _line("MODIFIED" if was else "ADDED", change.after)


def _bookmark(version: int) -> bytes:
    return _line("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def _line(kind: str, live: Any) -> bytes:
    return json.dumps({"type": kind, "object": live}, separators=(",", ":")).encode() + b"\n"

"""The workers' and the supervisor's side of the coordinator protocol: synchronous, bounded, patient.

A call that meets a coordinator which is down, restarting or busy is repeated with back-off, and not
before it was told to come again, for up to ``patience_seconds``; every call of the protocol is safe to
repeat. A refusal is raised at once, as the error class that it names. Async callers use
``asyncio.to_thread``. Thread-safe.

    client = CoordinatorClient.open(config, "actor")
    me = client.register(worker="actor-0", index=0)
"""

from __future__ import annotations

import random
import threading
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from rollout import errors
from rollout.common.bounded import UNREADABLE
from rollout.errors import CoordinatorError, LedgerRewound
from rollout.protocol import messages as m
from rollout.protocol.auth import Credential, open_credential
from rollout.protocol.routes import CONFIG, STATUS, read_token, token_for
from rollout.protocol.status import Status
from rollout.protocol.tls import Trust, open_trust, require_safe
from rollout.types import WeightVersion
from rollout_api.worker import WorkerOrder

__all__ = ["Answer", "CoordinatorClient", "HttpTransport", "Unreachable", "read_token", "token_for"]

PATIENCE_SECONDS = 120.0
"""How long a call waits for a coordinator that is down before it gives up."""

CALL_SECONDS = 30.0
"""Longest time one attempt may take beyond the wait that was asked for."""

IDLE_CONNECTIONS_MAX = 8
"""Connections kept open between calls."""

BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS = 0.02, 1.0

AGAIN_SECONDS_MAX = 30.0
"""The longest pause that a busy coordinator may ask for."""

FULL_SECONDS = 900.0
"""How long a call waits for room on the coordinator's disk: somebody has to make it."""

BUSY = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})

_jitter = random.Random()
"""Of our own: the global generator's state is part of a learner's hash chain."""

A = TypeVar("A", bound=m.Message)


class Answer(msgspec.Struct, frozen=True):
    """What a transport brings back. ``boot`` changes when the coordinator's process does.

    ``again_seconds``: when a refused call may be repeated; None: as the caller sees fit, if at all.
    """

    status: int
    body: bytes
    boot: str = ""
    position: int = 0
    again_seconds: float | None = None


class Unreachable(Exception):  # noqa: N818 - a state, always retried and then wrapped
    """The coordinator did not answer this attempt."""


class Transport(Protocol):
    """One request, one answer. Raises Unreachable when there is none."""

    def send(self, method: str, path: str, body: bytes, timeout_seconds: float) -> Answer:
        """Send once; no retries here."""
        ...

    def close(self) -> None:
        """Free connections."""
        ...


class HttpTransport:
    """Keep-alive HTTP to one coordinator, a connection for each call in flight.

    The standard library's client: a step makes four calls, and httpx spends 0.8 ms more on each.
    """

    def __init__(self, url: str, token: Credential, trust: Trust | None = None) -> None:
        require_safe(url)
        parts = urlsplit(url)
        if parts.scheme == "https" and trust is None:
            raise CoordinatorError(f"{url}: layout.caFile must say what it is known by")
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port
        self._trust = trust if parts.scheme == "https" else None
        self._token = token
        self._idle: list[HTTPConnection] = []

    def send(self, method: str, path: str, body: bytes, timeout_seconds: float) -> Answer:
        """Send once. Raises Unreachable on any failure of the connection."""
        headers = {
            "Authorization": f"Bearer {self._token()}",
            "Content-Type": "application/msgpack",
        }
        connection = self._take(timeout_seconds)
        try:
            connection.request(method, path, body=body, headers=headers)
            got = connection.getresponse()
            content = got.read()
        except (OSError, HTTPException) as error:
            connection.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        self._give_back(connection)
        boot = got.headers.get("X-Rollout-Boot", "")
        position = int(got.headers.get("X-Rollout-Position", "0"))
        return Answer(
            got.status, content, boot, position, _again_seconds(got.headers.get("Retry-After", ""))
        )

    def _take(self, timeout_seconds: float) -> HTTPConnection:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._connect(timeout_seconds)
        connection.timeout = timeout_seconds
        if connection.sock is not None:
            connection.sock.settimeout(timeout_seconds)
        return connection

    def _connect(self, timeout_seconds: float) -> HTTPConnection:
        if self._trust is None:
            return HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        context = self._trust.context()
        return HTTPSConnection(self._host, self._port, timeout=timeout_seconds, context=context)

    def _give_back(self, connection: HTTPConnection) -> None:
        if len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()


def _again_seconds(said: str) -> float | None:
    return min(float(said), AGAIN_SECONDS_MAX) if said.isdigit() else None


class CoordinatorClient:
    """Typed calls over a transport; remembers the ledger's position across coordinator restarts."""

    def __init__(self, transport: Transport, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._transport = transport
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._boots: set[str] = set()
        self._position = 0

    @classmethod
    def connect(
        cls, url: str, token: str, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> CoordinatorClient:
        """A client over HTTP on loopback; nothing is sent yet."""
        return cls(HttpTransport(url, lambda: token), patience_seconds=patience_seconds)

    @classmethod
    def open(
        cls, config: WorkerOrder, role: m.Role, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> CoordinatorClient:
        """A client as the configuration has it; nothing is sent yet. Raises CoordinatorError."""
        url, trust = config.layout.coordinator_url, open_trust(config.layout)
        transport = HttpTransport(url, open_credential(config, role), trust)
        return cls(transport, patience_seconds=patience_seconds)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    # -- actors -----------------------------------------------------------------------------------

    def register(self, *, worker: str, index: int, pid: int = 0, host: str = "") -> m.Registered:
        """Start an actor's incarnation; leases of its earlier ones are taken back."""
        ask = m.Register(worker=worker, index=index, pid=pid, host=host)
        return self._post("/v1/actor/register", ask, m.Registered)

    def claim(self, ask: m.Claim) -> m.Claimed:
        """Ask for tasks; blocks up to ``ask.wait_seconds``."""
        return self._post("/v1/actor/claim", ask, m.Claimed, ask.wait_seconds)

    def heartbeat(self, ask: m.Heartbeat, role: m.Role = "actor") -> m.HeartbeatAnswer:
        """Say that this worker lives; renews the leases it lists."""
        return self._post(f"/v1/{role}/heartbeat", ask, m.HeartbeatAnswer)

    def submit(self, ask: m.Submit) -> m.Submitted:
        """Hand in results. True in ``accepted`` means durable."""
        return self._post("/v1/actor/submit", ask, m.Submitted)

    def activation(self, ask: m.Activation) -> None:
        """Report a version loaded, or not."""
        self._post("/v1/actor/activation", ask, m.Empty)

    def outcome(
        self, *, worker: str, incarnation: int, role: m.Role, ok: bool, message: str = ""
    ) -> None:
        """Report how this worker ends, before it does. Raises Fenced when it was replaced."""
        ask = m.Outcome(worker=worker, incarnation=incarnation, role=role, ok=ok, message=message)
        self._post(f"/v1/{role}/outcome", ask, m.Empty)

    # -- learner ----------------------------------------------------------------------------------

    def start_learner(self, *, worker: str, pid: int = 0, host: str = "") -> m.LearnerStarted:
        """Start a learner incarnation; older ones can no longer commit."""
        ask = m.LearnerStart(worker=worker, pid=pid, host=host)
        return self._post("/v1/learner/start", ask, m.LearnerStarted)

    def publish_initial(
        self, *, worker: str, incarnation: int, version: WeightVersion, chain: str = ""
    ) -> None:
        """Announce version 0."""
        ask = m.PublishInitial(worker=worker, incarnation=incarnation, version=version, chain=chain)
        self._post("/v1/learner/publish-initial", ask, m.Empty)

    def batch(self, ask: m.BatchRequest) -> m.Batch:
        """The next batch, or why there is none yet; blocks up to ``ask.wait_seconds``."""
        return self._post("/v1/learner/batch", ask, m.Batch, ask.wait_seconds)

    def replay(self, *, worker: str, incarnation: int, step: int) -> m.Batch:
        """The recorded batch of a committed step."""
        ask = m.ReplayRequest(worker=worker, incarnation=incarnation, step=step)
        return self._post("/v1/learner/replay", ask, m.Batch)

    def commit(self, ask: m.Commit) -> m.Committed:
        """Commit one step; returns once it is durable. Raises CoordinatorError when it is refused."""
        return self._post("/v1/learner/commit", ask, m.Committed)

    def anchor(self, *, worker: str, incarnation: int, manifest: m.AnchorManifest) -> None:
        """Report a durable anchor."""
        ask = m.AnchorSaved(worker=worker, incarnation=incarnation, manifest=manifest)
        self._post("/v1/learner/anchor", ask, m.Empty)

    def fork(self, ask: m.Fork) -> m.Forked:
        """Open a new lineage."""
        return self._post("/v1/learner/fork", ask, m.Forked)

    def stored_again(self, *, worker: str, incarnation: int, version: WeightVersion) -> None:
        """Report that the committed version's weights lie in another object now."""
        ask = m.StoredAgain(worker=worker, incarnation=incarnation, version=version)
        self._post("/v1/learner/stored-again", ask, m.Empty)

    def failed(self, *, worker: str, incarnation: int, kind: str, message: str) -> None:
        """Report that the learner cannot go on; the run stops."""
        ask = m.Failed(worker=worker, incarnation=incarnation, kind=kind, message=message)
        self._post("/v1/learner/failed", ask, m.Empty)

    # -- the learner's pods -----------------------------------------------------------------------

    def join(self, ask: m.Join) -> m.Joined:
        """Ask for a place in the learner's group. Raises Fenced for an older incarnation."""
        return self._post("/v1/learner/join", ask, m.Joined, ask.wait_seconds)

    def stay(self, ask: m.Stay) -> None:
        """Say that this pod's ranks work. Raises Fenced when their group is over."""
        self._post("/v1/learner/stay", ask, m.Empty)

    def leaving(self, ask: m.Leaving) -> m.MayLeave:
        """Say that this pod was told to go while its ranks work. Raises Fenced for an older incarnation."""
        return self._post("/v1/learner/leaving", ask, m.MayLeave)

    def left(self, ask: m.Left) -> None:
        """Say how this pod's ranks ended. Raises Fenced for an older incarnation."""
        self._post("/v1/learner/left", ask, m.Empty)

    # -- the operator ----------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the run early; it can be resumed."""
        self._post("/v1/operator/stop", m.Stop(reason=reason), m.Empty)

    def settings(self, ask: m.Settings) -> m.SettingsTaken:
        """Change live settings. Raises StaleSettings for an older generation."""
        return self._post("/v1/operator/settings", ask, m.SettingsTaken)

    def status(self) -> Status:
        """What the run is doing now."""
        body = self._call("GET", STATUS, b"", 0.0)
        return msgspec.json.decode(body, type=Status)

    def config(self) -> bytes:
        """The WorkerConfig that the coordinator works with, as JSON."""
        return self._call("GET", CONFIG, b"", 0.0)

    # -- the one way out --------------------------------------------------------------------------

    def _post(self, path: str, ask: m.Message, answer: type[A], wait_seconds: float = 0.0) -> A:
        body = self._call("POST", path, msgspec.msgpack.encode(ask), wait_seconds)
        return msgspec.msgpack.decode(body, type=answer)

    def _call(self, method: str, path: str, body: bytes, wait_seconds: float) -> bytes:
        began, patience = time.monotonic(), self._patience_seconds
        backoff = BACKOFF_FIRST_SECONDS
        while True:
            again = 0.0
            try:
                answer = self._transport.send(method, path, body, wait_seconds + CALL_SECONDS)
            except Unreachable as error:
                trouble = str(error)
            else:
                self._check_position(answer)
                if answer.status == HTTPStatus.OK:
                    return answer.body
                refusal = _refusal(path, answer)
                if answer.again_seconds is None and answer.status not in BUSY:
                    raise refusal
                trouble, again = f"HTTP {answer.status}: {refusal}", answer.again_seconds or 0.0
                if answer.status == HTTPStatus.INSUFFICIENT_STORAGE:
                    patience = max(patience, FULL_SECONDS)
            pause = max(backoff * _jitter.uniform(0.5, 1.0), again * _jitter.uniform(1.0, 1.2))
            if time.monotonic() + pause > began + patience + wait_seconds:
                raise CoordinatorError(
                    f"no answer from the coordinator to {path} within {patience:.0f} s: {trouble};"
                    " see logs/coordinator.log"
                )
            time.sleep(pause)
            backoff = min(backoff * 2, BACKOFF_MAX_SECONDS)

    def _check_position(self, answer: Answer) -> None:
        """A new coordinator that knows less than an old one acknowledged has lost writes."""
        if not answer.boot:
            return
        with self._lock:
            if answer.boot not in self._boots and answer.position < self._position:
                raise LedgerRewound(
                    f"the ledger stood at position {self._position} and now says {answer.position}:"
                    " acknowledged writes are gone; restore the ledger or start a new run"
                )
            self._boots.add(answer.boot)
            self._position = max(self._position, answer.position)


def _refusal(path: str, answer: Answer) -> Exception:
    try:
        refusal = msgspec.msgpack.decode(answer.body, type=m.Refusal)
    except UNREADABLE:
        return CoordinatorError(f"the coordinator answered {path} with HTTP {answer.status}")
    kind: Any = getattr(errors, refusal.error, CoordinatorError)
    return kind(refusal.message)

"""The workers' and the supervisor's side of the coordinator protocol: synchronous, bounded, patient.

A call that meets a coordinator which is down, restarting or busy is repeated with back-off, and not
before it was told to come again, for up to ``patience_seconds``; every call of the protocol is safe to
repeat. A refusal is raised at once, as the error class that it names. Async callers use
``asyncio.to_thread``. Thread-safe.

    client = CoordinatorClient.open(config, "actor").as_worker("actor-0")
    me = client.call(routes.REGISTER, Register())
"""

from __future__ import annotations

import random
import threading
import time
from http import HTTPStatus
from typing import TypeVar

import msgspec

from rollout.errors import CoordinatorError, LedgerRewound
from rollout.protocol.auth import open_credential
from rollout.protocol.envelope import Envelope, check_answer_format
from rollout.protocol.messages import Role, WireMessage
from rollout.protocol.refusals import read_refusal
from rollout.protocol.routes import CONFIG, STATUS, Route
from rollout.protocol.status import Status
from rollout.protocol.tls import open_trust
from rollout.protocol.transport import Answer, HttpTransport, Transport, Unreachable
from rollout_api.worker import WorkerOrder

PATIENCE_SECONDS = 120.0
"""How long a call waits for a coordinator that is down before it gives up."""

GOING_SECONDS = 10.0
"""How long a process that was told to go waits in all for a coordinator that cannot be reached: it may have gone, too."""

CALL_SECONDS = 30.0
"""Longest time one attempt may take beyond the wait that was asked for."""

BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS = 0.02, 1.0

FULL_SECONDS = 900.0
"""How long a call waits for room on the coordinator's disk: somebody has to make it."""

BUSY = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})

_jitter = random.Random()
"""Of our own: the global generator's state is part of a learner's hash chain."""

Q = TypeVar("Q", bound=WireMessage)
A = TypeVar("A", bound=WireMessage)


class LedgerWatch:
    """The ledger's position as coordinators acknowledged it, over all their lives. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boots: set[str] = set()
        self._position = 0

    def check(self, answer: Answer) -> None:
        """Raise LedgerRewound when a new coordinator knows less than an old one acknowledged."""
        with self._lock:
            if answer.boot not in self._boots and answer.position < self._position:
                raise LedgerRewound(
                    f"the ledger stood at position {self._position} and now says {answer.position}:"
                    " acknowledged writes are gone; restore the ledger or start a new run"
                )
            self._boots.add(answer.boot)
            self._position = max(self._position, answer.position)


class Going:
    """Whether this process was told to go, for all its clients. Thread-safe."""

    def __init__(self) -> None:
        self._since: float | None = None

    def tell(self) -> None:
        """The first time counts."""
        self._since = self._since or time.monotonic()

    def until(self, patient_until: float) -> float:
        """Until when a coordinator that cannot be reached is waited for."""
        if self._since is None:
            return patient_until
        return min(patient_until, self._since + GOING_SECONDS)


class CoordinatorClient:
    """Calls over a transport, as nobody in particular until ``as_worker``."""

    def __init__(
        self,
        transport: Transport,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        envelope: Envelope | None = None,
        watch: LedgerWatch | None = None,
        going: Going | None = None,
    ) -> None:
        self._transport = transport
        self._going = going or Going()
        self._patience_seconds = patience_seconds
        self._envelope = envelope or Envelope()
        self._watch = watch or LedgerWatch()

    @classmethod
    def connect(
        cls, url: str, token: str, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> CoordinatorClient:
        """A client over HTTP on loopback; nothing is sent yet."""
        return cls(HttpTransport(url, lambda: token), patience_seconds=patience_seconds)

    @classmethod
    def open(
        cls, config: WorkerOrder, role: Role, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> CoordinatorClient:
        """A client as the configuration has it; nothing is sent yet. Raises CoordinatorError."""
        url, trust = config.layout.coordinator_url, open_trust(config.layout)
        transport = HttpTransport(url, open_credential(config, role), trust)
        return cls(transport, patience_seconds=patience_seconds)

    def as_worker(self, worker: str, incarnation: int = 0) -> CoordinatorClient:
        """The same connections, calling as this worker."""
        return CoordinatorClient(
            self._transport,
            patience_seconds=self._patience_seconds,
            envelope=Envelope(worker=worker, incarnation=incarnation),
            watch=self._watch,
            going=self._going,
        )

    def tell_to_go(self) -> None:
        """From now on wait seconds in all for a coordinator that is not there; one that answers may take its time."""
        self._going.tell()

    def close(self) -> None:
        """Close the transport, for every worker that calls over it."""
        self._transport.close()

    def call(self, route: Route[Q, A], request: Q) -> A:
        """The answer to one call. Raises what the coordinator refuses it with."""
        body = msgspec.msgpack.encode(request)
        answer = self._send("POST", route.path, body, route.wait_seconds(request))
        return msgspec.msgpack.decode(answer, type=route.answer)

    def status(self) -> Status:
        """What the run is doing now."""
        return msgspec.json.decode(self._send("GET", STATUS, b"", 0.0), type=Status)

    def config(self) -> bytes:
        """The WorkerConfig that the coordinator works with, as JSON."""
        return self._send("GET", CONFIG, b"", 0.0)

    def _send(self, method: str, path: str, body: bytes, wait_seconds: float) -> bytes:
        began, patience = time.monotonic(), self._patience_seconds
        backoff = BACKOFF_FIRST_SECONDS
        while True:
            again = 0.0
            try:
                answer = self._transport.send(
                    method, path, body, wait_seconds + CALL_SECONDS, self._envelope
                )
            except Unreachable as error:
                trouble, there = str(error), False
            else:
                there = True
                self._check(answer)
                if answer.status == HTTPStatus.OK:
                    return answer.body
                refusal = read_refusal(path, answer.status, answer.body)
                if answer.again_seconds is None and answer.status not in BUSY:
                    raise refusal
                trouble, again = f"HTTP {answer.status}: {refusal}", answer.again_seconds or 0.0
                if answer.status == HTTPStatus.INSUFFICIENT_STORAGE:
                    patience = max(patience, FULL_SECONDS)
            pause = max(backoff * _jitter.uniform(0.5, 1.0), again * _jitter.uniform(1.0, 1.2))
            until = began + patience + wait_seconds
            if time.monotonic() + pause > (until if there else self._going.until(until)):
                waited = time.monotonic() - began
                raise CoordinatorError(
                    f"no answer from the coordinator to {path} within {waited:.0f} s: {trouble};"
                    " see logs/coordinator.log"
                )
            time.sleep(pause)
            backoff = min(backoff * 2, BACKOFF_MAX_SECONDS)

    def _check(self, answer: Answer) -> None:
        """Whose answer it is: an intermediary's says neither boot nor format."""
        if answer.boot:
            check_answer_format(answer.format)
            self._watch.check(answer)

"""Asking a server that speaks OpenAI's chat completions, or another of its routes: with a deadline, a bounded reply, and tries with back-off.

What another try may mend (429, 408, 5xx, a broken connection, an answer that is no answer) is tried again after a pause that
doubles; then it is an InfrastructureError, which nobody is scored for. Other refusals are the caller's. Redirects are not
followed, and a key goes over TLS or to this machine only.
"""

from __future__ import annotations

import ipaddress
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from rollout.errors import InfrastructureError, RolloutError, SpecError

REPLY_BYTES_MAX = 8 << 20
TOKENS_MAX = 10_000_000
"""Of one question or reply: what a server says beyond it is not counted."""
SHOWN = 200
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 520, 522, 524, 529})

T = TypeVar("T")

_jitter = random.Random()
"""Of our own: the global generator may be part of a run's seeds."""


class RequestRefused(RolloutError):  # noqa: N818 - a state of one request
    """The server will not answer this request, however often it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to ask, and how patiently."""

    url: str
    """``http://`` or ``https://``, up to and with ``/v1``; no credentials in it."""
    model: str
    """As the server calls it."""
    key: str = field(default="", repr=False)
    """Sent as a bearer token and shown nowhere; empty: none."""
    timeout_seconds: float = 120.0
    """Of one try."""
    tries_max: int = 6
    """Tries of one call, >= 1."""
    pause_first_seconds: float = 1.0
    """Longest pause before the second try; doubles from try to try."""
    pause_max_seconds: float = 30.0
    """It grows up to this."""
    is_trusted_network: bool = False
    """A key may go there without TLS, as between pods of one endpoint."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SpecError(f"url {self.url!r}: expected http:// or https:// and a host")
        if parts.username or parts.password:
            raise SpecError("url: give the key by an environment variable, not in the address")
        is_plain = parts.scheme == "http" and not self.is_trusted_network
        if self.key and is_plain and not _is_here(parts.hostname):
            raise SpecError(f"url {self.url!r}: a key goes over https:// or to this machine only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A reply."""

    text: str
    """The likeliest choice, where choices were given."""
    finish: str
    """``finish_reason`` of the server."""
    prompt_tokens: int | None = None
    """As the server counts them; None where it does not say."""
    completion_tokens: int | None = None
    """As the server counts them; None where it does not say."""
    choice_logprobs: tuple[float, ...] = ()
    """Of replies that were given, how likely each is, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a reply is sampled."""

    max_tokens: int
    """Most tokens of the reply."""
    temperature: float = 0.0
    """0 is greedy."""
    seed: int | None = None
    """Of the server's noise; None: its own."""
    stop: tuple[str, ...] = ()
    """Texts that end the reply."""


def open_client(concurrency: int) -> httpx.Client:
    """A client with room for so many calls at a time; close it."""
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    return httpx.Client(limits=limits, follow_redirects=False)


def ask(
    client: httpx.Client,
    endpoint: Endpoint,
    messages: Sequence[Mapping[str, str]],
    asked: Asked,
    waiting: CallDeadline | None = None,
) -> Said:
    """The reply. Raises InfrastructureError after the last try, RequestRefused for what no try mends."""
    return post(
        client, endpoint, "/chat/completions", _body(endpoint, messages, asked), _parse, waiting
    )


def post(
    client: httpx.Client,
    endpoint: Endpoint,
    path: str,
    body: Mapping[str, Any],
    read: Callable[[bytes], T],
    waiting: CallDeadline | None = None,
) -> T:
    """What ``read`` makes of an answer; it raises TryAgain for one that is none. Raises as ``ask``."""
    waiting = waiting or CallDeadline()
    pause = endpoint.pause_first_seconds
    for tried in range(1, endpoint.tries_max + 1):
        try:
            return read(_attempt(client, endpoint, path, body, waiting))
        except TryAgain as error:
            wait = max(error.after, pause * _jitter.uniform(0.5, 1.0))
            if tried == endpoint.tries_max or wait > waiting.left():
                raise InfrastructureError(
                    f"{endpoint.url} gave no answer in {tried} tries: {error}"
                ) from error
            waiting.sleep(wait)
            pause = min(2 * pause, endpoint.pause_max_seconds)
    raise InfrastructureError(f"{endpoint.url} was not asked: tries_max is {endpoint.tries_max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDeadline:
    """Until when a call may be tried, and how its pauses pass."""

    until: float = math.inf
    """On ``clock``, in its seconds; infinite: ``tries_max`` alone bounds it."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow."""
    sleep: Callable[[float], None] = time.sleep
    """Waits so many seconds."""

    def left(self) -> float:
        """Seconds that are left."""
        return self.until - self.clock()


class TryAgain(Exception):  # noqa: N818 - a state, tried again and then wrapped
    """Another try may mend it; ``after``: seconds to wait at least."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


def _body(
    endpoint: Endpoint, messages: Sequence[Mapping[str, str]], asked: Asked
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [dict(one) for one in messages],
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
    }
    if asked.seed is not None:
        body["seed"] = asked.seed
    if asked.stop:
        body["stop"] = list(asked.stop)
    return body


def _attempt(
    client: httpx.Client,
    endpoint: Endpoint,
    path: str,
    body: Mapping[str, Any],
    waiting: CallDeadline,
) -> bytes:
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    url = endpoint.url.rstrip("/") + path
    seconds = max(0.001, min(endpoint.timeout_seconds, waiting.left()))
    deadline = time.monotonic() + seconds
    try:
        with client.stream("POST", url, json=body, headers=headers, timeout=seconds) as answer:
            raw = _read(answer, deadline)
    except httpx.HTTPError as error:
        raise TryAgain(f"{type(error).__name__}: {error}") from error
    if answer.status_code != httpx.codes.OK:
        raise _refusal(endpoint, answer, raw)
    return raw


def _read(answer: httpx.Response, deadline: float) -> bytes:
    """The body, within its bounds: a server that drips is late, too."""
    parts, size = [], 0
    for part in answer.iter_bytes():
        size += len(part)
        if size > REPLY_BYTES_MAX:
            raise TryAgain(f"the answer has more than {REPLY_BYTES_MAX >> 20} MiB")
        if time.monotonic() > deadline:
            raise TryAgain("the answer did not end in time")
        parts.append(part)
    return b"".join(parts)


def _refusal(endpoint: Endpoint, answer: httpx.Response, raw: bytes) -> Exception:
    said = raw[:SHOWN].decode(errors="replace")
    status = answer.status_code
    if status in AGAIN:
        return TryAgain(f"HTTP {status}: {said}", _after(answer.headers.get("Retry-After")))
    if status in {401, 403, 404} or 300 <= status < 400:
        return SpecError(
            f"{endpoint.url} answered HTTP {status}: {said}; look at the address, the model's name"
            f" {endpoint.model!r} and the key"
        )
    return RequestRefused(f"HTTP {status}: {said}")


def _after(header: str | None) -> float:
    """The server's own wish, in seconds, within reason."""
    try:
        wished = float(header or 0)
    except ValueError:
        return 0.0
    return min(max(wished, 0.0), 60.0) if math.isfinite(wished) else 0.0


def _parse(raw: bytes) -> Said:
    try:
        found = json.loads(raw)
        choice = found["choices"][0]
        text, finish = choice["message"].get("content"), choice.get("finish_reason")
        usage = found.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise TryAgain(f"the answer is no chat completion: {raw[:SHOWN]!r}") from error
    if text is not None and not isinstance(text, str):
        raise TryAgain(f"the answer's content is {type(text).__name__}, expected text")
    known = [one if isinstance(one, int) and 0 <= one <= TOKENS_MAX else None for one in counts]
    return Said(
        text=text or "",
        finish="length" if finish == "length" else "stop",
        prompt_tokens=known[0],
        completion_tokens=known[1],
    )


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

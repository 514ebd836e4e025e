"""Objects that lie with the coordinator, over its authenticated endpoints: for clusters without a bucket.

The other half is ``rollout.coordinator.server.objects``.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import httpx

from rollout.errors import StoreError
from rollout.objects.far_files import transient_httpx
from rollout.objects.retry import Absent, Refused, Transient
from rollout.objects.source import Source

Token = Callable[[], str]
Context = Callable[[], ssl.SSLContext]

CHUNK_BYTES = 1 << 18
CONNECT_SECONDS, CHUNK_SECONDS = 10.0, 30.0
CONNECTIONS_MAX = 8
MESSAGE_CHARACTERS_MAX = 500

AGAIN = frozenset(
    {
        HTTPStatus.UNPROCESSABLE_ENTITY,  # damaged on the way
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.REQUEST_TIMEOUT,
    }
)
FIXES = {
    HTTPStatus.UNAUTHORIZED: "give this process the run's token",
    HTTPStatus.FORBIDDEN: "only the learner writes objects",
    HTTPStatus.CONFLICT: "delete it there, and the run makes it again from its last anchor",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "keep objects in a bucket: spec.storage.uri",
    HTTPStatus.INSUFFICIENT_STORAGE: "give the coordinator a larger volume, or use spec.storage.uri",
}


class ServedRemote:
    """The coordinator at ``url``. Thread-safe."""

    def __init__(self, url: str, token: Token, context: Context | None = None) -> None:
        """``token`` is asked for each call, ``context`` for TLS (None: plain HTTP) before each.

        Raises StoreError for https without a context: it would be believed whoever answers.
        """
        if context is None and url.startswith("https:"):
            raise StoreError(f"{url}: layout.caFile must say what it is known by")
        self._url = url.rstrip("/")
        self._token, self._context = token, context
        self._lock = threading.Lock()
        self._made_with: ssl.SSLContext | None = None
        self._made: httpx.Client | None = None

    @property
    def _client(self) -> httpx.Client:
        """The one client, made anew when certificates have changed; calls in flight keep theirs."""
        with self._lock:
            context = None if self._context is None else self._context()
            if self._made is None or context is not self._made_with:
                self._made, self._made_with = self._make(context), context
            return self._made

    def _make(self, context: ssl.SSLContext | None) -> httpx.Client:
        return httpx.Client(
            base_url=self._url,
            auth=self._authorise,
            verify=True if context is None else context,
            timeout=httpx.Timeout(CHUNK_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
        )

    def _authorise(self, request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        return request

    @property
    def place(self) -> str:
        """The coordinator's address."""
        return f"the coordinator at {self._url}"

    def size(self, key: str) -> int | None:
        """Bytes of the object, None when it is not there."""
        try:
            return int(self._ask("HEAD", key).headers["Content-Length"])
        except Absent:
            return None

    @contextmanager
    def read(self, key: str, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Bytes ``[start, stop)`` as they arrive."""
        span = {"Range": f"bytes={start}-{stop - 1}"}
        with transient_httpx(), self._client.stream("GET", _path(key), headers=span) as answer:
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                answer.read()
                _check(answer)
                raise Transient(f"HTTP {answer.status_code} where a range was asked for")
            yield answer.iter_raw(CHUNK_BYTES)

    def write(self, key: str, source: Source) -> None:
        """Store whole, or nothing visible."""
        with source.open() as body:
            self._ask(
                "PUT",
                key,
                content=iter(lambda: body.read(CHUNK_BYTES), b""),
                headers={"Content-Length": str(source.size_bytes)},
            )

    def delete(self, key: str) -> None:
        """Remove; a no-op when it is not there."""
        self._ask("DELETE", key)

    def keys(self, prefix: str) -> list[str]:
        """Refused: what is there is the coordinator's own to know."""
        raise Refused(f"{self.place} does not list {prefix}", "ask for objects by name")

    def _ask(
        self,
        method: str,
        key: str,
        content: Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        with transient_httpx():
            answer = self._client.request(method, _path(key), content=content, headers=headers)
            _check(answer)
            return answer


def _path(key: str) -> str:
    return f"/v1/objects/{key.rpartition('/')[2]}"


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    status = answer.status_code
    said = f"HTTP {status}: {answer.text}"[:MESSAGE_CHARACTERS_MAX]
    if status == HTTPStatus.NOT_FOUND:
        raise Absent(said)
    again = answer.headers.get("Retry-After", "")
    if again.isdigit():
        raise Transient(said, float(again))
    if status in FIXES:
        raise Refused(said, FIXES[HTTPStatus(status)])
    if answer.is_server_error or status in AGAIN:
        raise Transient(said)
    raise Refused(said, "see logs/coordinator.log")

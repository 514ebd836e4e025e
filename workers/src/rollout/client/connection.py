"""HTTP to one service: a thread of its own, repeats until there is an answer, refusals as errors.

A request is repeated as it is, sequence id and all, so that the service makes a call once however often it came.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import aiohttp
import msgspec

from rollout.client.errors import CallFailedError, UnansweredError, refused
from rollout.client.rest.folders import unpack
from rollout.errors import SpecError

log = logging.getLogger(__name__)

T = TypeVar("T")

PREFIX = "/api/v1/"
JSON, PROTOBUF = "application/json", "application/x-protobuf"
SOCKETS_MAX = 128
WAITED_MAX = 64
"""Answers that are asked for at once; others wait for their turn, and sockets are left for new calls."""
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.05, 5.0
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 120.0
JOIN_SECONDS = 5.0
CHUNK_BYTES = 1 << 20
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same request is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer in HTTP."""

    status: int
    """HTTP's."""
    body: bytes
    """Undecoded, whole."""
    content_type: str
    """Of the body; empty where the answer names none."""
    chain: str
    """Header ``X-Rollout-Chain``; empty where the call has none."""

    def json(self) -> Any:
        """The body, decoded. Raises UnansweredError."""
        return self.read(Any)

    def read(self, kind: type[T]) -> T:
        """The body as a ``kind``; fields that it does not have are left out. Raises UnansweredError."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:
            raise UnansweredError(
                f"expected JSON, got {self.body[:100]!r} ({error}); is this a training service?"
            ) from error


class ServiceConnection:
    """Owns the thread, its loop and the sockets. ``retry_seconds``: how long a request is repeated without an answer."""

    def __init__(self, url: str, key: str, retry_seconds: float) -> None:
        self.url = url.rstrip("/")
        self.retry_seconds = retry_seconds
        self.key = key
        self._headers = {"X-API-Key": key}
        self._http: aiohttp.ClientSession | None = None
        self._waited = asyncio.Semaphore(WAITED_MAX)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rollout-client", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work in the thread. Raises UnansweredError after ``close``."""
        if self._loop.is_closed():
            work.close()
            raise UnansweredError("this client was closed; connect again")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Stop waiting for anything; calls that the service has go on there. Again: nothing."""
        atexit.unregister(self.close)
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result(JOIN_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_SECONDS)
        self._loop.close()

    async def post(self, path: str, body: Any, *, retry_seconds: float | None = None) -> Reply:
        """Send a body, bytes of protocol buffers or what becomes JSON. Raises ServiceError."""
        content, kind = (
            (body, PROTOBUF) if isinstance(body, bytes) else (msgspec.json.encode(body), JSON)
        )
        return await self._repeat("POST", path, content, kind, retry_seconds)

    async def send(self, method: str, path: str, body: Any = None) -> Reply:
        """A change of what is there, with a body as JSON or none. Raises ServiceError."""
        content = None if body is None else msgspec.json.encode(body)
        return await self._repeat(method, path, content, JSON, None)

    async def fetch_folder(self, path: str, target: Path) -> None:
        """Make ``target`` of the archive that is there: whole or not at all. Raises ServiceError, OSError."""
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".download-") as place:
            archive = Path(place) / "archive.tar"
            await self._repeat("GET", path, None, JSON, None, into=archive)
            await asyncio.to_thread(unpack, archive, target)

    async def get(self, path: str) -> Reply:
        """Ask for what is there. Raises ServiceError."""
        return await self._repeat("GET", path, None, JSON, None)

    async def answer(self, request_id: str) -> Reply:
        """The answer to a call that the service has, however long it takes. Raises ServiceError."""
        async with self._waited:
            told = ""
            while True:
                body = {"request_id": request_id}
                reply = await self._repeat(
                    "POST", "retrieve_future", msgspec.json.encode(body), JSON, None
                )
                if reply.status != 408:
                    return _made(reply)
                why = reply.json().get("queue_state_reason", "")
                if why and why != told:
                    log.warning("waiting request=%s reason=%s", request_id, why)
                told = why

    async def _repeat(
        self,
        method: str,
        path: str,
        body: bytes | None,
        kind: str,
        retry_seconds: float | None,
        *,
        into: Path | None = None,
    ) -> Reply:
        patience = self.retry_seconds if retry_seconds is None else retry_seconds
        until = self._loop.time() + patience
        pause, why = PAUSE_SECONDS_MIN, ""
        while True:
            try:
                reply = await self._once(method, path, body, kind, into)
                if reply.status == 200 or _is_waiting(path, reply):
                    return reply
                why = f"{reply.status}: {_words(reply)}"
                if reply.status not in AGAIN:
                    raise refused(reply.status, _words(reply))
            except (aiohttp.ClientError, TimeoutError) as error:
                why = f"{type(error).__name__}: {error}"
            if self._loop.time() + pause > until:
                raise UnansweredError(
                    f"{self.url} has not answered {path} for {patience:g} s ({why}); see that"
                    " `rollout serve --train` runs there, and raise retry_seconds where it needs longer"
                )
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _once(
        self, method: str, path: str, body: bytes | None, kind: str, into: Path | None
    ) -> Reply:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
            )
            connector = aiohttp.TCPConnector(limit=SOCKETS_MAX)
            self._http = aiohttp.ClientSession(connector=connector, timeout=timeout)
        headers = self._headers | {"Content-Type": kind}
        url = f"{self.url}{PREFIX}{path}"
        async with self._http.request(method, url, data=body, headers=headers) as said:
            return Reply(
                status=said.status,
                body=await _take(said, into),
                content_type=said.content_type,
                chain=said.headers.get("X-Rollout-Chain", ""),
            )

    async def _leave(self) -> None:
        others = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._http is not None:
            await self._http.close()


async def _take(said: aiohttp.ClientResponse, into: Path | None) -> bytes:
    """A body, or, of an answer that is wanted in a file, nothing."""
    if into is None or said.status != 200:
        return await said.read()
    with into.open("wb") as file:
        async for chunk in said.content.iter_chunked(CHUNK_BYTES):
            await asyncio.to_thread(file.write, chunk)
    return b""


def require_place(base_url: str | None, api_key: str | None) -> tuple[str, str]:
    """Address and key, from the environment where they are not said. Raises SpecError."""
    return (
        _said(base_url, "base_url", "TINKER_BASE_URL"),
        _said(api_key, "api_key", "TINKER_API_KEY"),
    )


def _said(given: str | None, name: str, variable: str) -> str:
    found = given or os.environ.get(variable)
    if not found:
        raise SpecError(
            f"{name}: expected what `rollout serve --train` printed, got nothing; say {name}, or set {variable}"
        )
    return found


def _is_waiting(path: str, reply: Reply) -> bool:
    return path == "retrieve_future" and reply.status == 408


def _made(reply: Reply) -> Reply:
    """Raises CallFailedError for a call that was answered with why it was not made."""
    if reply.content_type == JSON:
        said = reply.json()
        if "error" in said:
            raise CallFailedError(said["error"])
    return reply


def _words(reply: Reply) -> str:
    """What a refusal says, whoever refuses."""
    if reply.content_type != JSON:
        return reply.body[:200].decode(errors="replace")
    said = reply.json()
    return str(said.get("detail") or said.get("error") or said)

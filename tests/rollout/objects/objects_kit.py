"""A real S3 server, the coordinator's object endpoints, and a proxy that does to traffic what networks do."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from loopback import serving

from cluster import build
from cluster.control.ports import find_free_port
from rollout.coordinator.server.app import build_guard
from rollout.coordinator.server.callers import Caller, Unauthenticated
from rollout.coordinator.server.load import Load
from rollout.coordinator.server.objects import add_routes
from rollout.objects.cache import Cache
from rollout.objects.coordinator_remote import ServedRemote
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.places import open_bucket, parse_bucket
from rollout.objects.remote import RemoteStore
from rollout.objects.retry import Patience

START_SECONDS_MAX = 60.0
ACCESS_KEY, SECRET_KEY = "AKIA-A-TEST", "a-secret-nobody-may-read"
QUICK = Patience(tries_max=4, pause_first_seconds=0.01, pause_max_seconds=0.05)
SERVERS = [
    "gs",
    pytest.param("s3", marks=pytest.mark.process),
    pytest.param("versitygw", marks=[pytest.mark.process, pytest.mark.slow]),
    pytest.param("fake-gcs-server", marks=[pytest.mark.process, pytest.mark.slow]),
]
"""Servers of buckets: ours of Google's API and moto's of S3's; in the slow tier one of each that others wrote."""
CONDITIONAL = SERVERS[:-1]
"""Those that keep all conditions: fake-gcs-server deletes whatever generation is named."""
HASTY = replace(QUICK, slow_seconds=0.3, rate_min=1 << 20)
"""For tests of slowness only: a busy machine is slow, too."""


@contextmanager
def s3_server(folder: Path):
    """The address of an S3 server in a process of its own."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
    with served(folder, "s3", lambda port: [*command, str(port)]) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def versity_server(folder: Path):
    """The address of versitygw over a folder: another S3 server, written by others, that keeps real files.

    The credentials are those of ``set_credentials``.
    """
    data, beside = folder / "data", folder / "sidecar"
    data.mkdir()
    beside.mkdir()
    keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", "us-east-1"]
    store = ["posix", "--sidecar", str(beside), str(data)]

    def command(port: int) -> list[str]:
        return [_built("versitygw"), "--port", f"127.0.0.1:{port}", *keys, *store]

    with served(folder, "versitygw", command) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def fake_gcs_server(folder: Path):
    """The address of fake-gcs-server, which keeps objects as files: another server of Google's API, written by others."""

    def command(port: int) -> list[str]:
        where = ["-host", "127.0.0.1", "-port", str(port), "-scheme", "http"]
        own = ["-external-url", f"http://127.0.0.1:{port}", "-public-host", f"127.0.0.1:{port}"]
        kept = ["-backend", "filesystem", "-filesystem-root", str(folder / "data")]
        return [_built("fake-gcs-server"), *where, *own, *kept]

    with served(folder, "fake-gcs-server", command) as port:
        yield f"http://127.0.0.1:{port}"


def _built(name: str) -> str:
    build.ensure([name])
    return str(build.path(name))


@contextmanager
def served(folder: Path, name: str, command: Callable[[int], list[str]]):
    """The port of loopback on which ``command`` (given the port) listens, in a process that ends with the block."""
    port, log = find_free_port(), folder / f"{name}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command(port), cwd=folder, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"{name} did not start"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def s3_client(endpoint: str):
    import boto3

    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")


def google_client(endpoint: str):
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    return storage.Client(
        project="test",
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": endpoint},
    )


def s3_store(endpoint: str, bucket: str, folder: Path, patience: Patience = QUICK) -> RemoteStore:
    return bucket_store(f"s3://{bucket}/runs/one", endpoint, folder, patience)


def bucket_store(uri: str, endpoint: str, folder: Path, patience: Patience = QUICK) -> RemoteStore:
    remote = open_bucket(parse_bucket(uri, endpoint=endpoint), patience)
    return RemoteStore(remote, Cache(folder), patience)


class NamedCallers:
    """A token is its role's name."""

    def identify(self, header: str) -> Caller:
        if not header:
            raise Unauthenticated("the run's token is missing or wrong")
        return Caller(header.removeprefix("Bearer "))


@contextmanager
def object_service(store: FilesystemStore):
    """The address of the coordinator's object endpoints over ``store``; a token is its role's name."""
    loop, started = asyncio.new_event_loop(), Future()

    async def serve():
        app = web.Application(middlewares=[build_guard(NamedCallers(), Load())])
        add_routes(app, store)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        started.set_result(runner)

    def live():
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    runner = started.result(60)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_end(runner), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _end(runner: web.AppRunner) -> None:
    await runner.cleanup()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def served_store(url: str, folder: Path, token="learner", **cache) -> RemoteStore:
    return RemoteStore(ServedRemote(url, lambda: token), Cache(folder, **cache), QUICK)


@dataclass
class Answer:
    """What the server said. ``close_after`` bytes of the body the connection is cut."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    close_after: int | None = None
    bytes_per_second: float | None = None


Fault = Callable[["Asked", Callable[[], Answer]], Answer | None]
"""Given a request and the way to pass it on; returns what the client sees, None for a cut connection."""


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Proxy:
    """Passes requests on to ``upstream``; ``faults`` meet the next ones they ``match``, one each."""

    upstream: str
    url: str = ""
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, fault: Fault, method: str = "GET", times: int = 1) -> None:
        self.faults.extend([(method, fault)] * times)

    def take(self, asked: Asked) -> Fault | None:
        with self.lock:
            self.seen.append((asked.method, asked.path))
            self.asked.append(asked)
            for index, (method, fault) in enumerate(self.faults):
                if method == asked.method:
                    del self.faults[index]
                    return fault
        return None

    def forward(self, asked: Asked) -> Answer:
        parts = urlsplit(self.upstream)
        connection = HTTPConnection(parts.hostname, parts.port, timeout=30)
        try:
            connection.request(asked.method, asked.path, asked.body, asked.headers)
            got = connection.getresponse()
            body = got.read()
            headers = [(k, v) for k, v in got.getheaders() if k.lower() not in HOP]
            return Answer(got.status, headers, body)
        finally:
            connection.close()


HOP = {"connection", "transfer-encoding", "keep-alive", "server", "date"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle_one(self):
        length = int(self.headers.get("Content-Length") or 0)
        asked = Asked(self.command, self.path, dict(self.headers), self.rfile.read(length))
        fault = self.proxy.take(asked)
        try:
            answer = self._answer(asked, fault)
        except (OSError, HTTPException):
            answer = None
        self.close_connection = True
        if answer is not None:
            self._say(answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one

    def _answer(self, asked: Asked, fault: Fault | None) -> Answer | None:
        def pass_on() -> Answer:
            return self.proxy.forward(asked)

        return pass_on() if fault is None else fault(asked, pass_on)

    def _say(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name, _ in answer.headers}:
            self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(answer.body[: answer.close_after], answer.bytes_per_second)

    def _send_body(self, body: bytes, bytes_per_second: float | None) -> None:
        step = max(1, len(body) // 100 if bytes_per_second else len(body))
        try:
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                if bytes_per_second:
                    time.sleep(step / bytes_per_second)
        except OSError:
            return  # the client has had enough

    def log_message(self, *_):
        pass


@contextmanager
def proxy_before(upstream: str):
    proxy = Proxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield proxy


def says(status: int, code: str) -> Fault:
    """The server answers with an error and does nothing."""
    body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    return lambda asked, pass_on: Answer(status, [("Content-Type", "application/xml")], body)


def cut(asked: Asked, pass_on) -> None:
    """The connection breaks; the server has seen nothing."""
    return


def answer_lost(asked: Asked, pass_on) -> None:
    """The server does what was asked, and its answer never arrives."""
    pass_on()


def truncated(asked: Asked, pass_on) -> Answer:
    """Half of the body arrives."""
    answer = pass_on()
    answer.close_after = len(answer.body) // 2
    return answer


def wrong_bytes(asked: Asked, pass_on) -> Answer:
    """One bit of the body is another."""
    answer = pass_on()
    body = bytearray(answer.body)
    body[len(body) // 2] ^= 1
    answer.body = bytes(body)
    return answer


def slow(asked: Asked, pass_on) -> Answer:
    """Far fewer bytes a second than are borne."""
    answer = pass_on()
    answer.bytes_per_second = 400_000
    return answer


def set_credentials(patch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            patch.delenv(name)
    patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")

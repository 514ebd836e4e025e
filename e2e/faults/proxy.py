"""The proxy: TLS in, TLS out, HTTP/1.1, in a thread of its own so that a test may block."""

import asyncio
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from cluster.control.pki import Authority, build_authority
from faults.calls import Call, parse_call
from faults.exchange import HttpExchange
from faults.kinds import Fault
from faults.kubeconfig import AS_THE_PROXY, render_token_kubeconfig
from faults.rules import Book, Record, Rule
from faults.status import build_status
from faults.upstream import Upstream, open_upstream

LOOPBACK = "127.0.0.1"
BODY_BYTES_MAX = 16 * 1024 * 1024
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
CLOSE_SECONDS = 0.2


class Proxy:
    """A running proxy; every method may be called from any thread."""

    def __init__(self, kubeconfig: Path, host: str) -> None:
        self._kubeconfig = kubeconfig
        self._host = host
        self._authority = build_authority("rollout-faults")
        self._book = Book()
        self._under_way: set[asyncio.Transport | None] = set()
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"https://{self._host}:{self._port}"

    @property
    def authority_pem(self) -> bytes:
        """What clients trust."""
        return self._authority.pem

    def kubeconfig(self, token: str = "") -> str:
        """A kubeconfig for clients: with their own token, or with the identity of the proxy's kubeconfig."""
        return render_token_kubeconfig(self.url, self._authority.pem, token or AS_THE_PROXY)

    def inject(self, rule: Rule) -> Rule:
        """Put a rule in force; it counts calls from now on. Returns it, for `matched`."""
        self._book.inject(rule)
        return rule

    def clear(self) -> None:
        """Drop every rule and every record."""
        self._book.clear()

    def records(self) -> list[Record]:
        """Every call that has ended, oldest first."""
        return self._book.records()

    def writes(self) -> list[Record]:
        """Every write that has ended, oldest first."""
        return [record for record in self.records() if record.call.writes]

    def matched(self, rule: Rule) -> int:
        """How many calls the rule has counted so far."""
        return self._book.matched(rule)

    def cut_connections(self) -> None:
        """Break every connection that a call is under way on: watches are opened anew."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cut_all)

    def _cut_all(self) -> None:
        for transport in list(self._under_way):
            if transport is not None:
                transport.abort()

    def stop(self) -> None:
        """Make `serve` return."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def serve(self, started: threading.Event) -> None:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            upstream = await open_upstream(self._kubeconfig, stack)
            app = web.Application(client_max_size=BODY_BYTES_MAX)
            app.router.add_route("*", "/{path:.*}", lambda request: self._handle(request, upstream))
            runner = web.AppRunner(
                app,
                shutdown_timeout=CLOSE_SECONDS,
                access_log=None,
                handler_cancellation=True,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            context = _server_context(self._authority, self._host)
            site = web.TCPSite(runner, self._host, 0, ssl_context=context)
            await site.start()
            self._port = runner.addresses[0][1]
            started.set()
            await self._stopped.wait()

    async def _handle(self, request: web.Request, upstream: Upstream) -> web.StreamResponse:
        call = parse_call(request.method, request.path, request.query, request.headers)
        if "Upgrade" in request.headers:
            return _refuse(501, "the fault proxy carries no upgrades: use the API server itself")
        exchange = HttpExchange(request, upstream)
        fault, arrived = self._book.decide(call), time.monotonic()
        status = 0
        transport = request.transport
        self._under_way.add(transport)
        try:
            response = await _serve(exchange, fault)
            status = 0 if exchange.was_cut else response.status
            return response
        finally:
            self._under_way.discard(transport)
            self._book.record(_build_record(call, fault, status, arrived))


async def _serve(exchange: HttpExchange, fault: Fault | None) -> web.StreamResponse:
    try:
        return await (fault.serve(exchange) if fault else exchange.forward())
    except aiohttp.ClientConnectionResetError:
        return exchange.cut()  # the client left
    except aiohttp.ClientError as error:
        return exchange.cut() if exchange.answering else _refuse(503, f"API server: {error}")


def _build_record(call: Call, fault: Fault | None, status: int, arrived: float) -> Record:
    name = type(fault).__name__ if fault else ""
    return Record(call=call, fault=name, status=status, arrived=arrived, ended=time.monotonic())


def _refuse(status: int, message: str) -> web.Response:
    return web.json_response(build_status(status, message=message), status=status)


def _server_context(authority: Authority, host: str) -> ssl.SSLContext:
    names = list(dict.fromkeys([host, LOOPBACK, "localhost"]))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as scratch:
        authority.issue("fault-proxy", names=names).write(Path(scratch), "server")
        context.load_cert_chain(f"{scratch}/server.crt", f"{scratch}/server.key")
    return context


@contextmanager
def running(kubeconfig: Path, host: str = LOOPBACK) -> Iterator[Proxy]:
    """A proxy in front of the kubeconfig's API server, for the length of a block.

    `host` is the address to listen on: a bridge's one when pods are to reach it.
    """
    proxy, started = Proxy(kubeconfig, host), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve(started)), daemon=True)
    thread.start()
    try:
        if not started.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the fault proxy did not start within {START_SECONDS_MAX} s")
        yield proxy
    finally:
        proxy.stop()
        thread.join(STOP_SECONDS_MAX)

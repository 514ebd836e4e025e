"""A server of the attacker's where the operator expects a run's coordinator: with the run's own certificate, which who may edit a namespace may read."""

import base64
import gzip
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tenant import Tenant

from cluster.control.ports import LOOPBACK
from rollout_api import names

CHUNK = b" " * (1 << 20)
BYTES_SENT_MAX = 256 << 20
"""An attacker who may send without end would keep this test's process busy."""
Reply = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One call of the operator's."""

    path: str
    headers: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Evil:
    """What was heard, and how many bytes the caller took."""

    heard: list[Heard] = field(default_factory=list)
    num_bytes: int = 0


def redirect(target: str) -> Reply:
    """Go elsewhere, with the same body."""

    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(307)
        request.send_header("Location", target)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return reply


def redirect_to_me(request: BaseHTTPRequestHandler) -> None:
    """To the same server by another name, of which the run's certificate speaks, too."""
    port = request.connection.getsockname()[1]
    redirect(f"https://localhost:{port}/elsewhere")(request)


def endless(request: BaseHTTPRequestHandler) -> None:
    """An answer that does not end."""
    request.send_response(200)
    request.end_headers()
    for _ in range(BYTES_SENT_MAX // len(CHUNK)):
        request.wfile.write(CHUNK)


def bomb(request: BaseHTTPRequestHandler) -> None:
    """A small answer that is large once it is unpacked."""
    packed = gzip.compress(CHUNK * 200, 9)
    request.send_response(200)
    request.send_header("Content-Encoding", "gzip")
    request.send_header("Content-Length", str(len(packed)))
    request.end_headers()
    request.wfile.write(packed)


@contextmanager
def coordinating(tenant: Tenant, run: str, reply: Reply, scratch: Path) -> Iterator[Evil]:
    """The attacker's answers instead of a run's coordinator's, for a block."""
    evil = Evil()
    server = ThreadingHTTPServer((LOOPBACK, 0), _handler(evil, reply))
    server.daemon_threads = True
    server.socket = _context(tenant, run, scratch).wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    workload = names.workload_name(run, "coordinator")
    host = f"{workload}-0.{workload}.{tenant.namespace}.svc"
    hosts = tenant.installation.hosts
    hosts.write_text(f"{host} {LOOPBACK} {server.server_port}\n")
    try:
        yield evil
    finally:
        hosts.write_text("")
        server.shutdown()
        server.server_close()


def _handler(evil: Evil, reply: Reply) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            self.rfile.read(length)
            evil.heard.append(Heard(path=self.path, headers=dict(self.headers)))
            reply(self)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _context(tenant: Tenant, run: str, scratch: Path) -> ssl.SSLContext:
    secret = tenant.me.get("Secret", names.certificate_name(run)).body["data"]
    for name in ("tls.crt", "tls.key"):
        (scratch / name).write_bytes(base64.b64decode(secret[name]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(scratch / "tls.crt", scratch / "tls.key")
    return context

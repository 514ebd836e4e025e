"""The attacker answers where the operator calls a run's coordinator, and wants its token, its memory or its time."""

import base64
import gzip
import json
import ssl
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from operators import eventually
from tenant import RUN

from charts import NAMESPACE
from cluster.control import audit
from cluster.control.ports import LOOPBACK
from rollout_api import names

pytestmark = pytest.mark.control_plane
TOKEN = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/rollout-certificates/token"
GROWTH_BYTES_MAX = 48 << 20
OPERATOR = f"system:serviceaccount:{NAMESPACE}:rollout-operator"
SUSPEND = {"spec": {"suspend": True}}
CHUNK = b" " * (1 << 20)
BYTES_SENT_MAX = 256 << 20
"""An attacker who may send without end would keep this test's process busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One call of the operator's."""

    path: str
    headers: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Evil:
    """Every call that was heard."""

    heard: list[Heard] = field(default_factory=list)


def redirect(target):
    """Go elsewhere, with the same body."""

    def reply(request):
        request.send_response(307)
        request.send_header("Location", target)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return reply


def redirect_to_me(request):
    """To the same server by another name, of which the run's certificate speaks, too."""
    port = request.connection.getsockname()[1]
    redirect(f"https://localhost:{port}/elsewhere")(request)


def endless(request):
    """An answer that does not end."""
    request.send_response(200)
    request.end_headers()
    for _ in range(BYTES_SENT_MAX // len(CHUNK)):
        request.wfile.write(CHUNK)


def bomb(request):
    """A small answer that is large once it is unpacked."""
    packed = gzip.compress(CHUNK * 200, 9)
    request.send_response(200)
    request.send_header("Content-Encoding", "gzip")
    request.send_header("Content-Length", str(len(packed)))
    request.end_headers()
    request.wfile.write(packed)


@contextmanager
def coordinating(tenant, run, reply, scratch):
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


def _handler(evil, reply):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers.get("Content-Length", "0"))
            self.rfile.read(length)
            evil.heard.append(Heard(path=self.path, headers=dict(self.headers)))
            reply(self)

        def log_message(self, *_):
            pass

    return Handler


def _context(tenant, run, scratch):
    secret = tenant.me.get("Secret", names.certificate_name(run)).body["data"]
    for name in ("tls.crt", "tls.key"):
        (scratch / name).write_bytes(base64.b64decode(secret[name]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(scratch / "tls.crt", scratch / "tls.key")
    return context


# -- what is asked ------------------------------------------------------------------------------------


def memory_bytes(process):
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def elsewhere(mallory):
    server = mallory.me.send("GET", "/version")
    assert server.done
    return redirect(f"{mallory.me.server}{TOKEN}")


WISHES = {
    "sends the operator to the API server": elsewhere,
    "sends the operator to another server of mine": lambda _: redirect_to_me,
    "answers without an end": lambda _: endless,
    "answers with a bomb": lambda _: bomb,
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES.keys())
def test_my_coordinator(mallory, wish, tmp_path):
    mallory.start()
    process = mallory.installation.operator.process
    log = mallory.installation.audit_log()
    begin, before = log.stat().st_size, memory_bytes(process)
    with coordinating(mallory, RUN, wish(mallory), tmp_path) as evil:
        assert mallory.me.patch("RolloutRun", RUN, SUSPEND).done
        eventually(lambda: evil.heard, "the coordinator was not called")
        mallory.world.wait_for("Suspended", "True", "Suspended")
    assert memory_bytes(process) - before < GROWTH_BYTES_MAX
    assert {one.path for one in evil.heard} == {"/v1/operator/stop"}
    calls = [call for call in audit.read(log, begin) if call.user == OPERATOR]
    assert {call.name for call in calls if call.subresource == "token"} <= {"rollout-operator"}
    for one in evil.heard:
        assert_is_of_no_use_elsewhere(mallory, one.headers["Authorization"])


def assert_is_of_no_use_elsewhere(mallory, authorization):
    """What the attacker was shown is for this run's coordinator alone."""
    claims = authorization.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert claims["aud"] == [f"rollout/{mallory.world.run()['metadata']['uid']}"]
    assert mallory.me.with_token(authorization, "/api/v1/secrets").status == 401

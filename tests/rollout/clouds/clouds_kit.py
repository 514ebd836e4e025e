"""A server of ours in a cloud's place: small S3, STS, Google's storage and tokens, refusing what a test says."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from urllib.parse import parse_qs, urlsplit

from loopback import serving

ARN = "arn:aws:sts::111122223333:assumed-role/research-learner/pod"
ROLE_ARN = "arn:aws:iam::111122223333:role/research-learner"


@dataclass
class Refusal:
    """What the server says to a method. ``said`` is the cloud's sentence."""

    status: int
    code: str
    said: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeCloud:
    """What the server holds, and what it refuses, by method or action. ``skew``: seconds of its clock.

    ``answers``: what it says to a method, to an action of Amazon's, or to the end of a path of Google's; a list is said in its order.
    """

    url: str = ""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, bytes | list[bytes]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    skew: float = 0.0
    date: bool = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cloud: FakeCloud

    def _serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        form = parse_qs(body.decode(errors="replace")) if self.command == "POST" else {}
        parts = urlsplit(self.path)
        is_list = "list-type" in parts.query
        name = form.get("Action", ["LIST" if is_list else self.command])[0]
        if target := self.headers.get("X-Amz-Target"):
            name = target.rpartition(".")[2]
        elif ":" in parts.path:
            name = parts.path.rpartition(":")[2]
        self.cloud.seen.append(f"{name} {parts.path}")
        refusal = (
            None if parts.path == "/" and self.command == "HEAD" else self.cloud.refusals.get(name)
        )
        if refusal is not None:
            self._refuse(refusal, is_form=bool(form), is_json=target is not None)
        elif name in self.cloud.answers:
            answer = self.cloud.answers[name]
            answer = answer.pop(0) if isinstance(answer, list) else answer
            kind = "text/xml" if answer.startswith(b"<") else "application/json"
            self._say(200, answer, kind)
        elif form:
            self._say(200, _sts(name), "text/xml")
        else:
            self._object(parts.path, body, is_list=is_list)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

    def _object(self, path, body, *, is_list):
        held = self.cloud.objects
        if is_list:
            names = "".join(f"<Contents><Key>{one}</Key></Contents>" for one in held)
            self._say(200, f"<ListBucketResult>{names}</ListBucketResult>".encode())
        elif self.command == "PUT":
            held[path] = body
            self._say(200, b"", ETag='"one"')
        elif self.command == "DELETE":
            held.pop(path, None)
            self._say(204, b"")
        elif path == "/":
            self._say(200, b"")
        elif path not in held:
            self._refuse(Refusal(404, "NoSuchKey"))
        else:
            self._say(200, held[path], ETag='"one"')

    def _refuse(self, refusal, *, is_form=False, is_json=False):
        if is_json:
            said = {"__type": f"com.amazonaws#{refusal.code}", "message": refusal.said}
            self._say(refusal.status, json.dumps(said).encode(), "application/x-amz-json-1.0")
            return
        if refusal.code == "oauth":
            said = {"error": "invalid_grant", "error_description": refusal.said}
            self._say(refusal.status, json.dumps(said).encode(), "application/json")
            return
        if refusal.code == "google":
            said = {"error": {"code": refusal.status, "message": refusal.said, "errors": []}}
            self._say(refusal.status, json.dumps(said).encode(), "application/json")
            return
        error = f"<Error><Code>{refusal.code}</Code><Message>{refusal.said}</Message></Error>"
        text = f"<ErrorResponse>{error}</ErrorResponse>" if is_form else error
        self._say(refusal.status, text.encode(), **refusal.headers)

    def _say(self, status, body, kind="application/xml", **headers):
        self.send_response_only(status)
        if self.cloud.date:
            self.send_header("Date", formatdate(time() + self.cloud.skew, usegmt=True))
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def _sts(action: str) -> bytes:
    if action == "GetCallerIdentity":
        result = f"<Arn>{ARN}</Arn><UserId>one</UserId><Account>111122223333</Account>"
    else:
        keys = "<AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        result = f"<Credentials>{keys}<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials>"
    return (
        f"<{action}Response><{action}Result>{result}</{action}Result></{action}Response>".encode()
    )


@contextmanager
def fake_cloud():
    """The server, in a thread of its own."""
    cloud = FakeCloud()
    handler = type("Handler", (_Handler,), {"cloud": cloud})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield cloud


def write_token(path, **claims) -> str:
    """A projected token as the kubelet writes it: its signature is nobody's business here."""
    filled = {
        "aud": ["sts.amazonaws.com"],
        "exp": time() + 3600,
        "sub": "system:serviceaccount:research:one-learner",
        **claims,
    }
    body = urlsafe_b64encode(json.dumps(filled).encode()).rstrip(b"=").decode()
    path.write_text(f"e30.{body}.c2ln")
    return str(path)

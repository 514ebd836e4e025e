"""A registry on loopback that keeps what it is given: OCI distribution, with the faults and the manners a test asks for."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from loopback import serving

PATH = re.compile(r"/v2/(?P<name>.+?)/(?P<what>blobs|manifests)/(?P<rest>.+)")
USER, PASSWORD, TOKEN = "ci", "right horse", "a.b.c"


@dataclass(slots=True, kw_only=True)
class SmallRegistry:
    """What it holds, and how it behaves."""

    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """By repository and tag or digest."""
    types: dict[str, str] = field(default_factory=dict)
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers of each."""
    auth: str = ""
    """`Basic`, `Bearer` or nothing."""
    lists_referrers: bool = False
    busy: int = 0
    """So many requests are answered with 503 first."""
    refuse_puts_after: int | None = None
    """So many manifests are taken, no more."""
    location: str = ""
    """Where uploads are sent to; empty: here."""
    realm: str = ""
    lies: bool = False
    """Whether a tag gives something else than was pushed."""
    flood: bool = False
    """Whether answers do not end."""
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def tags(self, name: str) -> dict[str, str]:
        """Digest by tag."""
        return {
            tag: digest_of(data)
            for (held, tag), data in self.manifests.items()
            if held == name and ":" not in tag
        }


@contextmanager
def running(**settings: object) -> Iterator[SmallRegistry]:
    """One that answers during the block."""
    registry = SmallRegistry(**settings)

    class Handler(_Handler):
        held = registry

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_port
    with serving(server):
        yield registry


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Handler(BaseHTTPRequestHandler):
    held: SmallRegistry
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _begin(self) -> bool:
        length = self.headers.get("content-length")
        self.body = self.rfile.read(int(length)) if length else b""
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.held.lock:
            self.held.requests.append((self.command, self.path, headers))
            self.held.busy -= 1
            busy = self.held.busy >= 0
        if busy:
            self._answer(503)
            return False
        if self.held.flood:
            self._flood()
            return False
        return self._known()

    def _known(self) -> bool:
        said = self.headers.get("authorization", "")
        basic = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        if self.path.startswith("/token"):
            return True
        expected = {"": None, "Basic": basic, "Bearer": f"Bearer {TOKEN}"}[self.held.auth]
        if expected is None or said == expected:
            return True
        realm = self.held.realm or f"http://{self.held.host}/token"
        kind = {"Basic": 'Basic realm="x"', "Bearer": f'Bearer realm="{realm}",service="here"'}
        self._answer(401, {"WWW-Authenticate": kind[self.held.auth]})
        return False

    def do_GET(self) -> None:
        if not self._begin():
            return
        if self.path.startswith("/token"):
            self._give_token()
            return
        found = PATH.fullmatch(self.path)
        name, rest = found["name"], found["rest"]
        if found["what"] == "blobs":
            data = self.held.blobs.get((name, rest))
            kind = "application/octet-stream"
        else:
            data = self.held.manifests.get((name, rest))
            kind = self.held.types.get(digest_of(data)) if data else ""
        if data is not None and self.held.lies and ":" not in rest:
            data += b" "
        self._answer(404 if data is None else 200, {"Content-Type": kind}, data or b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        if self._begin():
            self._answer(202, {"Location": self.held.location or f"{self.path}one?state=x"})

    def do_PUT(self) -> None:
        if not self._begin():
            return
        split = urlsplit(self.path)
        found = PATH.fullmatch(split.path)
        if found["what"] == "blobs":
            self._put_blob(found["name"], parse_qs(split.query)["digest"][0])
        else:
            self._put_manifest(found["name"], found["rest"])

    def _put_blob(self, name: str, digest: str) -> None:
        good = digest_of(self.body) == digest
        if good:
            self.held.blobs[name, digest] = self.body
        self._answer(201 if good else 400)

    def _put_manifest(self, name: str, reference: str) -> None:
        manifest = json.loads(self.body)
        needed = [manifest.get("config"), *manifest.get("layers", [])]
        missing = [one for one in needed if one and (name, one["digest"]) not in self.held.blobs]
        if self.held.refuse_puts_after is not None:
            self.held.refuse_puts_after -= 1
        spent = self.held.refuse_puts_after is not None and self.held.refuse_puts_after < 0
        if missing or spent:
            self._answer(403 if spent else 404)
            return
        digest = digest_of(self.body)
        self.held.types[digest] = self.headers["content-type"]
        self.held.manifests[name, digest] = self.held.manifests[name, reference] = self.body
        subject = manifest.get("subject")
        listed = subject and self.held.lists_referrers
        self._answer(201, {"OCI-Subject": subject["digest"]} if listed else {})

    def _give_token(self) -> None:
        said = self.headers.get("authorization", "")
        basic = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        self._answer(200 if said == basic else 401, {}, json.dumps({"token": TOKEN}).encode())

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, data: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _flood(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for _ in range(1 << 12):
                self.wfile.write(b"a" * (1 << 16))
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        """Nothing is written to the terminal."""

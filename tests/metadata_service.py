"""A metadata service of a cloud's machine, on loopback: it refuses whoever does not ask as EC2 and Compute Engine want it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from loopback import serving

INSTANCE = "/computeMetadata/v1/instance"
QUIET = {f"{INSTANCE}/preempted": b"FALSE", f"{INSTANCE}/maintenance-event": b"NONE"}
"""What Compute Engine says while nothing is the matter."""


class Metadata:
    """What the service answers by path, which tokens are valid, and what it was asked."""

    def __init__(self):
        self.answers: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.url = ""


@contextmanager
def metadata_service() -> Iterator[Metadata]:
    metadata = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            assert self.path == "/latest/api/token"
            assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
            metadata.tokens = {f"token-{len(metadata.asked)}"}
            self.say(200, next(iter(metadata.tokens)).encode())

        def do_GET(self):
            metadata.asked.append(self.path)
            if self.path.startswith("/latest"):
                if self.headers.get("X-aws-ec2-metadata-token") not in metadata.tokens:
                    return self.say(401)
            elif self.headers.get("Metadata-Flavor") != "Google":
                return self.say(403)
            answer = metadata.answers.get(self.path)
            return self.say(404) if answer is None else self.say(200, answer)

        def say(self, status, body=b""):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    metadata.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        yield metadata

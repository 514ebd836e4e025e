"""A loopback HTTP server that answers as an API server might on a bad day; what it is asked is kept."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Answer = tuple[int, bytes]


def said(status: int, body: Any) -> Answer:
    """An answer as JSON."""
    return status, json.dumps(body).encode()


def refusal(status: int, message: str) -> Answer:
    """A `Status` of the API server."""
    return said(status, {"kind": "Status", "status": "Failure", "message": message, "code": status})


class Asked:
    """Requests in order: method, path, query, body."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, Any]] = []


@contextmanager
def api_server(
    folder: Path, answer: Callable[[str, str, str], Answer]
) -> Iterator[tuple[Path, Asked]]:
    """Serve until the block ends; gives the kubeconfig, whose context is `here` with the namespace `team`."""
    asked = Asked()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            asked.requests.append((self.command, parts.path, parts.query, body))
            status, text = answer(self.command, parts.path, parts.query)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield write_kubeconfig(folder, server.server_address[1]), asked
    finally:
        server.shutdown()
        server.server_close()


def write_kubeconfig(folder: Path, port: int) -> Path:
    """A kubeconfig for a server on loopback without TLS."""
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "team"}}
        ],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "me", "user": {"token": "secret-token-of-mine"}}],
    }
    path.write_text(json.dumps(content))
    return path

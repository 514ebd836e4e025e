"""A Git repository that clients fetch over HTTP, as from a hosting service: git's own `http-backend` behind a small server."""

import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cluster.control.ports import LOOPBACK, find_free_port
from cluster.errors import CannotRunHereError

GIT_SECONDS_MAX = 60.0
BRANCH = "main"
NAME = "served.git"
PASSED = {"Content-Type": "CONTENT_TYPE", "Git-Protocol": "GIT_PROTOCOL"}
"""Headers of a request that git reads, by the variables of CGI."""
ALONE = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "somebody",
    "GIT_AUTHOR_EMAIL": "somebody@example.com",
    "GIT_COMMITTER_NAME": "somebody",
    "GIT_COMMITTER_EMAIL": "somebody@example.com",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One branch, `main`; `url` is where it is served."""

    folder: Path
    url: str

    def commit(self, files: Mapping[str, str], message: str) -> str:
        """Write these files, by their paths, and commit; the revision as Flux names it."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        _git(self.folder, "add", "--all")
        _git(self.folder, "commit", "-q", "-m", message)
        return self.head()

    def revert(self) -> str:
        """Take the newest commit back by another one; its revision."""
        _git(self.folder, "revert", "--no-edit", "HEAD")
        return self.head()

    def head(self) -> str:
        return f"{BRANCH}@sha1:{_git(self.folder, 'rev-parse', 'HEAD').strip()}"


@contextmanager
def serving_git(scratch: Path) -> Iterator[Repository]:
    """An empty repository for a block, served on loopback. Raises CannotRunHereError where git has no `http-backend`."""
    folder = scratch / "work"
    folder.mkdir()
    if not (Path(_git(folder, "--exec-path").strip()) / "git-http-backend").is_file():
        raise CannotRunHereError("git has no http-backend here")
    place = f"--separate-git-dir={scratch / NAME}"
    _git(folder, "init", "-q", f"--initial-branch={BRANCH}", place)
    port = find_free_port()
    server = ThreadingHTTPServer((LOOPBACK, port), _handler(scratch))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Repository(folder=folder, url=f"http://{LOOPBACK}:{port}/{NAME}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(root: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path, _, query = self.path.partition("?")
            asked = {"REQUEST_METHOD": self.command, "PATH_INFO": path, "QUERY_STRING": query}
            given = {name: self.headers.get(head, "") for head, name in PASSED.items()}
            served = {"GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1"}
            length = int(self.headers.get("Content-Length", "0"))
            done = subprocess.run(
                ("git", "http-backend"),
                input=self.rfile.read(length),
                env={**ALONE, **served, **asked, **given, "REMOTE_ADDR": LOOPBACK},
                capture_output=True,
                timeout=GIT_SECONDS_MAX,
                check=False,
            )
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    return Handler


def _git(folder: Path, *words: str) -> str:
    command = ("git", "-C", str(folder), *words)
    done = subprocess.run(
        command, env=ALONE, capture_output=True, text=True, timeout=GIT_SECONDS_MAX, check=True
    )
    return done.stdout

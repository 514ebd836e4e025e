"""A hub of our own on loopback: the routes that ``huggingface_hub`` asks, and a second address for the bytes of large files.

What goes wrong is drawn from a repository's seed, the path and how often it was asked: the same whatever the order of threads.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Lock, Thread
from urllib.parse import unquote, urlsplit

FAULTS = ("429", "500", "503", "reset", "cut", "truncated", "slow", "whole")
"""``reset``: no answer; ``cut``: a body that ends in a reset, ``truncated``: in a close; ``slow``: in many pieces; ``whole``: a Range is not heeded."""
PIECE = 1000
CUT_OFF = 4
"""Answers that are under way when a hub goes: they are cut off."""
API = re.compile(
    r"^/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|refs|auth-check)(?:/([^/]+))?)?$"
)
RESOLVE = re.compile(r"^/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


@dataclass
class Repo:
    """A repository and what is wrong with it. ``commits``: files by commit; ``refs``: commits by name; ``large``: names kept elsewhere.

    ``share`` of the requests fail as drawn; ``gone_after``: requests until the hub goes; ``store_gone``: large files break off once and are not to be had from then on; ``gate``: status of who may not
    read; ``token`` opens it. ``spoilt``: how often a file is sent with other bytes of the same length. ``claims``: another
    commit that files are said to be of. ``moves_to``: what ``main`` is once it was asked for.
    """

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    large: frozenset[str] = frozenset()
    seed: int = 0
    share: float = 0.0
    faults: tuple[str, ...] = FAULTS
    gone_after: int | None = None
    store_gone: bool = False
    gate: int | None = None
    token: str | None = None
    spoilt: Counter[str] = field(default_factory=Counter)
    claims: str | None = None
    moves_to: str | None = None
    asks_to_wait: int | None = None
    portal: bool = False
    stalls: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    tokens_elsewhere: int = 0
    lock: Lock = field(default_factory=Lock)

    def heal(self) -> None:
        """Nothing is wrong any more; counts of sent bytes start again."""
        self.share, self.gone_after, self.gate, self.claims = 0.0, None, None, None
        self.moves_to, self.asks_to_wait, self.portal, self.stalls = None, None, False, False
        self.store_gone = False
        self.spoilt.clear()
        self.sent.clear()

    def draw(self, method: str, path: str) -> str | None:
        """What goes wrong with this request."""
        with self.lock:
            self.asked[f"{method} {path}"] += 1
            nth = self.asked[f"{method} {path}"]
            if self.gone_after is not None and self.asked.total() > self.gone_after:
                return "cut" if self.asked.total() <= self.gone_after + CUT_OFF else "reset"
            if self.store_gone and path.startswith("/bytes/"):
                return "truncated" if nth == 1 else "reset"
        draws = Random(f"{self.seed} {method} {path} {nth}")
        return draws.choice(self.faults) if draws.random() < self.share else None


def oid(content: bytes) -> str:
    """Git's name of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Hub:
    """Both addresses, and the repositories by name; data sets as ``datasets/owner/name``."""

    address: str
    elsewhere: str
    repos: dict[str, Repo]


@contextmanager
def open_hub(repos: Mapping[str, Repo] | None = None) -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Answers) as front,
        ThreadingHTTPServer(("127.0.0.1", 0), Answers) as back,
    ):
        hub = Hub(
            address=f"http://127.0.0.1:{front.server_port}",
            elsewhere=f"http://127.0.0.1:{back.server_port}",
            repos=dict(repos or {}),
        )
        for server in (front, back):
            server.hub = hub
            server.daemon_threads = True
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield hub
        finally:
            front.shutdown()
            back.shutdown()


class Answers(BaseHTTPRequestHandler):
    """Answers of both addresses."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def handle(self):
        with suppress(OSError, ValueError):
            super().handle()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        raw = urlsplit(self.path).path
        if found := re.match(r"^/bytes/((?:datasets/)?[^/]+/[^/]+)/(.+)$", path):
            self._elsewhere(found[1], found[2])
        elif found := API.match(raw):
            name = ("datasets/" if found[1] == "datasets" else "") + found[2]
            self._guarded(name, lambda repo: self._api(repo, found[3], found[4]))
        elif found := RESOLVE.match(raw):
            name = (found[1] or "") + found[2]
            self._guarded(name, lambda repo: self._resolve(name, repo, unquote(found[3]), found[4]))
        else:
            self._refuse(404, "RepoNotFound")

    do_HEAD = do_GET

    # -- what goes wrong before anything is looked at

    def _guarded(self, name, answer):
        repo = self.hub.repos.get(name)
        if repo is None:
            self._refuse(404, "RepoNotFound")
            return
        self.fault = repo.draw(self.command, urlsplit(self.path).path)
        if repo.portal:
            self._send(200, b"<html>please log in to this network</html>")
        elif repo.asks_to_wait:
            self._refuse(429, "", {"Retry-After": str(repo.asks_to_wait)})
        elif not self._failed():
            answer(repo)

    def _failed(self) -> bool:
        if self.fault == "429":
            self._refuse(429, "", {"Retry-After": "1"})
        elif self.fault in {"500", "503"}:
            self._refuse(int(self.fault), "")
        elif self.fault == "reset":
            self._reset()
        else:
            return False
        return True

    def _reset(self):
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()

    def _refuse(self, status, code, headers=None):
        named = {"X-Error-Code": code} if code else {}
        self._send(status, b"", {**named, **(headers or {})})

    # -- the routes

    def _api(self, repo, what, revision):
        if what == "refs":
            found = [
                {"name": n, "ref": f"refs/heads/{n}", "targetCommit": c}
                for n, c in repo.refs.items()
            ]
            self._json({"branches": found, "converts": [], "tags": []})
            return
        if what == "auth-check":
            self._refuse(repo.gate, "GatedRepo") if repo.gate else self._json({})
            return
        commit = self._commit(repo, unquote(revision or "main"))
        if commit is None:
            self._refuse(404, "RevisionNotFound")
        elif what == "tree":
            files = repo.commits[commit]
            self._json([self._entry(repo, name, files[name]) for name in sorted(files)])
        else:
            if repo.moves_to and commit == repo.refs["main"]:
                repo.refs["main"] = repo.moves_to
            self._json({"id": "a/b", "sha": commit, "siblings": [], "tags": [], "downloads": 0})

    def _commit(self, repo, revision):
        return revision if revision in repo.commits else repo.refs.get(revision)

    def _entry(self, repo, name, content):
        entry = {"type": "file", "path": name, "size": len(content), "oid": oid(content)}
        if name in repo.large:
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
        return entry

    def _resolve(self, name, repo, revision, file):
        commit = self._commit(repo, revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound")
        elif file not in repo.commits[commit]:
            self._refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        elif repo.gate and self.headers.get("Authorization") != f"Bearer {repo.token}":
            self._refuse(repo.gate, "GatedRepo")
        else:
            content = repo.commits[commit][file]
            said = {"X-Repo-Commit": repo.claims or commit, "Accept-Ranges": "bytes"}
            if file in repo.large:
                digest = hashlib.sha256(content).hexdigest()
                place = f"{self.hub.elsewhere}/bytes/{name}/{commit}/{file}"
                linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
                self._send(302, b"", {**said, **linked, "Location": place})
            else:
                self._content(repo, file, content, {**said, "ETag": f'"{oid(content)}"'})

    def _elsewhere(self, name, rest):
        commit, _, file = rest.partition("/")
        repo = self.hub.repos[name]
        self.fault = repo.draw(self.command, self.path)
        repo.tokens_elsewhere += "Authorization" in self.headers
        if not self._failed():
            self._content(repo, file, repo.commits[commit][file], {"ETag": '"of-the-store"'})

    def _content(self, repo, file, content, headers):
        if self.command == "HEAD":
            self._send(200, content, headers)
            return
        if repo.spoilt[file] > 0:
            repo.spoilt[file] -= 1
            content = bytes([content[0] ^ 1]) + content[1:]
        first, status = 0, 200
        asked = re.match(r"bytes=(\d+)-$", self.headers.get("Range", ""))
        if asked and self.fault != "whole":
            first, status = int(asked[1]), 206
            headers = {
                **headers,
                "Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}",
            }
        self._send(status, content[first:], headers, repo=repo, file=file)

    # -- bytes

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status, body, headers=None, *, repo=None, file=""):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        fault = getattr(self, "fault", None)
        cut = fault in {"truncated", "cut"} and len(body) > 1
        part = body[: len(body) // 2] if cut else body
        if repo is not None and repo.stalls and file in repo.large:
            part, cut = body[: len(body) // 2], False
            self.wfile.write(part)
            repo.sent[file] += len(part)
            self.rfile.read(1)  # until the other side is gone
            return
        size = PIECE if fault == "slow" else max(1, len(part))
        for start in range(0, len(part), size):
            self.wfile.write(part[start : start + size])
        if repo is not None:
            repo.sent[file] += len(part)
        if cut:
            self.close_connection = True
        if cut and fault == "cut":
            self._reset()

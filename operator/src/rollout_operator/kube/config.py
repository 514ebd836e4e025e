"""Where the API server is and who we are: the pod's service account, or a kubeconfig file.

The token is read again every minute, because bound tokens are replaced while the process lives.
Exec plugins and auth providers of kubeconfigs are refused: the operator runs with files.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from yarl import URL

from rollout_operator.errors import NotLeader

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS_MAX = 60.0
REQUEST_SECONDS_MAX = 30.0
CONNECTIONS_MAX = 64
KEEP_SECONDS = 60.0
"""The API server closes what is idle for 90 s; a connection of ours goes before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An API server and how to reach it. ``namespace`` and ``account`` (if known) are our own."""

    server: str
    namespace: str = "default"
    account: str = ""
    tls: ssl.SSLContext | None = None
    token: str = ""
    token_file: Path | None = None


def find_connection(environment: Mapping[str, str], folder: Path = ACCOUNT_FOLDER) -> Connection:
    """From ``KUBECONFIG`` when it is set, else from the pod's service account.

    Raises ValueError when neither is there.
    """
    if path := environment.get("KUBECONFIG"):
        return read_kubeconfig(Path(path))
    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST"),
        environment.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host or not (folder / "token").exists():
        raise ValueError("no KUBECONFIG is set and this is no pod with a service account")
    bracketed = f"[{host}]" if ":" in host else host
    return Connection(
        server=f"https://{bracketed}:{port}",
        namespace=(folder / "namespace").read_text().strip(),
        account=account_of((folder / "token").read_text()),
        tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        token_file=folder / "token",
    )


def account_of(token: str) -> str:
    """The service account that a token is of; empty when it does not say."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError):
        return ""
    return str(claims.get("sub", "")).rpartition(":")[2]


def read_kubeconfig(path: Path) -> Connection:
    """The current context of a kubeconfig. Raises ValueError for what is missing or unsupported."""
    document = yaml.safe_load(path.read_text()) or {}
    try:
        context = _named(document["contexts"], document["current-context"])["context"]
        cluster = _named(document["clusters"], context["cluster"])["cluster"]
        user = _named(document.get("users", ()), context.get("user", ""))["user"]
    except (KeyError, StopIteration) as error:
        raise ValueError(f"{path}: the current context is not complete ({error})") from error
    if "exec" in user or "auth-provider" in user:
        raise ValueError(f"{path}: exec plugins are not supported; use a token or a certificate")
    token_file = user.get("tokenFile")
    return Connection(
        server=cluster["server"].rstrip("/"),
        namespace=context.get("namespace", "default"),
        tls=_tls(cluster, user) if cluster["server"].startswith("https") else None,
        account=account_of(user.get("token", "")),
        token=user.get("token", ""),
        token_file=Path(token_file) if token_file else None,
    )


def _named(entries: Any, name: str) -> Mapping[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = _bytes(cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = _bytes(user, "client-certificate"), _bytes(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile() as chain:
            chain.write(certificate + b"\n" + key)
            chain.flush()
            context.load_cert_chain(chain.name)
    return context


def _bytes(entry: Mapping[str, Any], name: str) -> bytes:
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(entry[name]).read_bytes() if entry.get(name) else b""


class Bearer:
    """Puts the newest token on every request to the API server: an aiohttp middleware.

    Nobody else gets it, and a server of a tenant is never spoken to over this session: what it redirects to
    could be the API server.
    """

    def __init__(self, connection: Connection) -> None:
        self._origin = URL(connection.server).origin()
        self._file = connection.token_file
        self._token = connection.token
        self._read_at = -TOKEN_SECONDS_MAX

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Add the header and go on."""
        if request.url.origin() == self._origin and (token := self._newest()):
            request.headers["Authorization"] = f"Bearer {token}"
        return await handler(request)

    def _newest(self) -> str:
        now = time.monotonic()
        if self._file is not None and now - self._read_at >= TOKEN_SECONDS_MAX:
            self._token, self._read_at = self._file.read_text().strip(), now
        return self._token


async def wait_for_token(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """A middleware for kopf: a token that is refused is a server that is away, to be tried again.

    It would close its session and ask for another one, at once and without an end.
    """
    response = await handler(request)
    if response.status == HTTPStatus.UNAUTHORIZED:
        response.release()
        raise aiohttp.ClientConnectionError(f"401 Unauthorized: {request.url.path}")
    return response


def open_session(
    connection: Connection,
    *,
    connections_max: int = CONNECTIONS_MAX,
    may_send: Callable[[], None] = lambda: None,
) -> aiohttp.ClientSession:
    """One session for the readers and every write; ``may_send`` is asked as a write leaves."""
    connector = aiohttp.TCPConnector(
        ssl=connection.tls if connection.tls is not None else False,
        limit=connections_max,
        keepalive_timeout=KEEP_SECONDS,
    )
    return _session(connection, connector, owns=True, request_class=_guarded(may_send))


def open_outer_session(may_send: Callable[[], None] = lambda: None) -> aiohttp.ClientSession:
    """A session for servers that tenants run: it knows no token of ours, and unpacks and remembers nothing."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_SECONDS)
    return aiohttp.ClientSession(
        request_class=_guarded(may_send),
        connector=connector,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX, sock_connect=10),
        headers={"User-Agent": "rollout-operator", "Accept-Encoding": "identity"},
    )


def _guarded(may_send: Callable[[], None]) -> type[aiohttp.ClientRequest]:
    """Requests that ask at the last moment: one may have waited for its connection, or been frozen.

    aiohttp writes a body in a task of its own, later than ``send``: it is asked there once more, so that
    what a freeze leaves between question and socket is one request, not all that were on their way.
    """

    class Guarded(aiohttp.ClientRequest):
        def _ask(self) -> None:
            if self.method != "GET":
                may_send()

        async def send(self, conn: Any) -> aiohttp.ClientResponse:
            self._ask()
            return await super().send(conn)

        async def write_bytes(
            self, writer: Any, conn: Any, content_length: int | None = None
        ) -> None:
            try:
                self._ask()
            except NotLeader as error:
                conn.protocol.set_exception(aiohttp.ClientConnectionError(str(error)))
                conn.close()
                return
            await super().write_bytes(writer, conn, content_length)

    return Guarded


def borrow_session(
    session: aiohttp.ClientSession,
    connection: Connection,
    *further: aiohttp.ClientMiddlewareType,
) -> aiohttp.ClientSession:
    """A session over the connections of another one; closing it closes none of them."""
    assert session.connector is not None
    return _session(connection, session.connector, *further, owns=False)


def _session(
    connection: Connection,
    connector: aiohttp.BaseConnector,
    *further: aiohttp.ClientMiddlewareType,
    owns: bool,
    request_class: type[aiohttp.ClientRequest] = aiohttp.ClientRequest,
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        request_class=request_class,
        connector=connector,
        connector_owner=owns,
        middlewares=(Bearer(connection), *further),
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX, sock_connect=10),
        headers={"User-Agent": "rollout-operator"},
    )

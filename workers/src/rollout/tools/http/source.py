"""The tool ``http``: one page at a time, its name resolved once and asked at the address that was checked.

Whatever answers is a stranger: how much is read, for how long, and how often it sends elsewhere is bounded; nothing
is unpacked, no cookie is kept, no proxy or credential of this process is used. That a name does not resolve or a
connection does not come up is infrastructure; all that comes after it is data.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from rollout.errors import InfrastructureError
from rollout.tools.contract import Tool, ToolAnswer, ToolMistake, ToolTraits
from rollout.tools.http.rules import Allowed, allowed_hosts, read_url, require_public
from rollout.turns import ToolSpec
from rollout.types import Row

CALL_SECONDS_MAX = 20.0
CONNECT_SECONDS_MAX = 10.0
SECONDS_MARGIN = 10.0
BODY_BYTES_MAX = 1 << 20
REDIRECTS_MAX = 5
CALLS_MAX = 64
"""Of one process at a time."""
TEXTS = ("text/", "application/json", "application/xml", "application/xhtml", "application/ld+json")
HEADERS = {
    "User-Agent": "rollout",
    "Accept": "text/*, application/json",
    "Accept-Encoding": "identity",
}
REDIRECTS = frozenset({301, 302, 303, 307, 308})

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host."""
Require = Callable[[str, Sequence[str]], None]
"""Raises ToolMistake for addresses that are not to be asked."""


async def resolve_here(host: str, port: int) -> Sequence[str]:
    """As this machine resolves it. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class HttpSource:
    """The tool over some hosts, the same for every row. ``trust`` None: certificates that this machine trusts."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        resolve: Resolve = resolve_here,
        require: Require = require_public,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed_hosts(hosts)
        self._reach = _Reach(
            resolve=resolve,
            require=require,
            trust=trust or ssl.create_default_context(),
            free=asyncio.Semaphore(CALLS_MAX),
        )
        self.specs = (_spec(hosts),)

    def open(self, row: Row) -> tuple[Tool, ...]:
        """The tool of one episode."""
        del row
        return (HttpTool(self.specs[0], self._allowed, self._reach),)


def _spec(hosts: Sequence[str]) -> ToolSpec:
    url = {"type": "string", "description": "https://host/path"}
    return ToolSpec(
        name="http",
        description=f"Get a page over HTTP and read its text. Hosts: {', '.join(sorted(hosts))}.",
        parameters={"type": "object", "properties": {"url": url}, "required": ["url"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """How hosts are found and reached, by all episodes of a process."""

    resolve: Resolve
    require: Require
    trust: ssl.SSLContext
    free: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class HttpTool:
    """The tool in one episode: it keeps nothing."""

    spec: ToolSpec
    allowed: Allowed
    reach: _Reach

    @property
    def traits(self) -> ToolTraits:
        """A page that was read in an episode is as it was."""
        return ToolTraits(
            pure=True, seconds=CALL_SECONDS_MAX + CONNECT_SECONDS_MAX + SECONDS_MARGIN
        )

    async def call(self, arguments: Mapping[str, Any], key: str) -> ToolAnswer:
        """Get a page. Raises ToolMistake for one that may not be asked for, InfrastructureError where nobody is reached."""
        del key
        written = arguments.get("url")
        if set(arguments) != {"url"} or not isinstance(written, str):
            raise ToolMistake('wrong arguments: expected {"url": "https://host/path"}')
        url = read_url(written, self.allowed)
        async with self.reach.free:
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    return await self._follow(url)
            except TimeoutError:
                text = f"error: no whole answer within {CALL_SECONDS_MAX:g} s"
                return ToolAnswer(text=text, is_error=True, signals={"tool_timeouts": 1})

    async def _follow(self, url: URL) -> ToolAnswer:
        for _ in range(REDIRECTS_MAX + 1):
            found = await self._get(url)
            if isinstance(found, ToolAnswer):
                return found
            url = read_url(found, self.allowed, base=url)
        raise ToolMistake(f"the page leads elsewhere more than {REDIRECTS_MAX} times")

    async def _get(self, url: URL) -> ToolAnswer | str:
        """What one page says, or where it leads."""
        host, port = str(url.raw_host), url.port or 0
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                addresses = await self.reach.resolve(host, port)
        except (OSError, TimeoutError) as error:
            raise InfrastructureError(f"{host} is not found: {error}") from error
        self.reach.require(host, addresses)
        try:
            async with (
                _session(addresses, self.reach.trust) as session,
                session.get(url, allow_redirects=False) as response,
            ):
                if response.status in REDIRECTS and "Location" in response.headers:
                    return response.headers["Location"]
                return await _read(response)
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            raise InfrastructureError(f"{host} is not reached: {error}") from error
        except (ClientError, OSError, ValueError) as error:
            raise ToolMistake(f"the answer of {host} is none: {type(error).__name__}") from error

    async def close(self) -> None:
        """Nothing is held between two calls."""


def _session(addresses: Sequence[str], trust: ssl.SSLContext) -> ClientSession:
    connector = TCPConnector(resolver=_Pinned(addresses), ssl=trust, force_close=True, limit=1)
    return ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        headers=HEADERS,
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX),
        auto_decompress=False,
        trust_env=False,
    )


async def _read(response: ClientResponse) -> ToolAnswer:
    packed = response.headers.get("Content-Encoding", "identity").lower()
    if packed != "identity":
        raise ToolMistake(f"the page is packed ({packed[:40]}), which was not asked for")
    kind = response.content_type
    if not kind.startswith(TEXTS):
        return ToolAnswer(text=f"{response.status}: a page of type {kind[:80]}, which is not text")
    body, more = await _take(response)
    text = body.decode(_charset(response), errors="replace")
    cut = f"\n[cut after {BODY_BYTES_MAX} bytes]" if more else ""
    said = text + cut if response.ok else f"{response.status}\n{text}{cut}"
    return ToolAnswer(text=said, is_error=not response.ok)


async def _take(response: ClientResponse) -> tuple[bytes, bool]:
    """The beginning of the body, and whether there is more."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return bytes(body[:BODY_BYTES_MAX]), True
    return bytes(body), False


def _charset(response: ClientResponse) -> str:
    named = response.charset or "utf-8"
    return (
        named
        if named.lower() in {"utf-8", "ascii", "us-ascii", "iso-8859-1", "latin-1"}
        else "utf-8"
    )


class _Pinned(AbstractResolver):
    """Answers with the addresses that were checked, whatever is asked."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """As aiohttp asks it."""
        del family
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""

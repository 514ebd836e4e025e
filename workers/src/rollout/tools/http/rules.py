"""Which pages may be asked for, and at which addresses: pure decisions over a URL and over what a name resolves to.

A host is asked because a run names it, letter by letter; no address is, in whatever form it is written. What a name
resolves to must be public, all of it: one private address refuses the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from yarl import URL

from rollout.tools.contract import ToolMistake

URL_CHARACTERS_MAX = 2048
PORTS = {"http": 80, "https": 443}
_PLAIN = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII without spaces and backslashes."""
_NEVER = tuple(
    ip_network(one)
    for one in (
        "168.63.129.16/32",  # Azure's wire server, which counts as public
        "64:ff9b::/96",  # IPv4 behind NAT64
        "64:ff9b:1::/48",
        "2002::/16",  # IPv4 behind 6to4
        "2001::/32",  # IPv4 behind Teredo
        "fec0::/10",
    )
)
Allowed = frozenset[tuple[str, int]]
"""Host and port; of one without a port 443."""


def allowed_hosts(hosts: Iterable[str]) -> Allowed:
    """What a run's ``hosts`` allow."""
    parted = (one.partition(":") for one in hosts)
    return frozenset((host, int(port or PORTS["https"])) for host, _, port in parted)


def read_url(written: str, allowed: Allowed, base: URL | None = None) -> URL:
    """A URL that may be asked for; ``base`` is the page that leads there. Raises ToolMistake saying which rule it breaks.

    Port 443 speaks https and port 80 http; any other port that is allowed either.
    """
    if len(written) > URL_CHARACTERS_MAX or not _PLAIN.fullmatch(written):
        raise ToolMistake(
            f"url: expected at most {URL_CHARACTERS_MAX} printable characters of ASCII, without spaces"
        )
    try:
        url = URL(written) if base is None else base.join(URL(written))
        port = url.port
    except ValueError as error:
        raise ToolMistake(f"url: {error}") from error
    if url.scheme not in PORTS or url.raw_host is None or port is None:
        raise ToolMistake("url: expected https://host/path")
    if base is not None and base.scheme == "https" and url.scheme != "https":
        raise ToolMistake(f"the page leads to {url.scheme}://{url.raw_host}, which is not https")
    if url.raw_user is not None or url.raw_password is not None or "@" in url.raw_authority:
        raise ToolMistake("url: expected no user and password before the host")
    wrong = {80: "https", 443: "http"}.get(port)
    if (url.raw_host, port) not in allowed or url.scheme == wrong:
        names = ", ".join(sorted(host if p == 443 else f"{host}:{p}" for host, p in allowed))
        what = "the page leads to" if base is not None else "url:"
        raise ToolMistake(
            f"{what} {url.scheme}://{url.raw_host[:80]}:{port}, which is not among the hosts: {names}"
        )
    return url.with_fragment(None)


def is_public(address: str) -> bool:
    """Whether an address is one of the Internet's, for everybody: not this machine's, this network's, or a cloud's own."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return _is_public(found)


def _is_public(found: IPv4Address | IPv6Address) -> bool:
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return False
    hidden = any(found in one for one in _NEVER if one.version == found.version)
    return found.is_global and not (found.is_multicast or found.is_reserved or hidden)


def require_public(host: str, addresses: Sequence[str]) -> None:
    """Raise ToolMistake where one of a host's addresses is not public."""
    if not addresses or not all(map(is_public, addresses)):
        raise ToolMistake(f"{host} has an address that is not public: it is not asked")

"""The API server behind the proxy: where it is and as whom the proxy speaks to it."""

import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from kubernetes import client, config
from multidict import CIMultiDict

from faults.kubeconfig import AS_THE_PROXY

CALL_SECONDS_MAX = 3600.0
CONNECT_SECONDS_MAX = 60.0
BUFFER_BYTES = 8 * 1024 * 1024
"""A watch's event must fit: objects are at most 1.5 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Two sessions: one with the kubeconfig's own identity, one for clients who bring a token."""

    server: str
    own: aiohttp.ClientSession
    bare: aiohttp.ClientSession

    def session_for(self, headers: CIMultiDict[str]) -> aiohttp.ClientSession:
        """The session of a request; a certificate would outrank a client's own token.

        Takes the token that stands for the proxy's identity out of `headers`.
        """
        if headers.get("Authorization", "") not in {"", f"Bearer {AS_THE_PROXY}"}:
            return self.bare
        headers.popall("Authorization", None)
        return self.own


async def open_upstream(kubeconfig: Path, stack: AsyncExitStack) -> Upstream:
    """Open the sessions; they close with the stack."""
    settings = client.Configuration()
    config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
    token = settings.api_key.get("authorization")
    headers = {"Authorization": token} if token else {}
    own = await stack.enter_async_context(_open(_build_context(settings, own=True), headers))
    bare = await stack.enter_async_context(_open(_build_context(settings, own=False), {}))
    return Upstream(server=settings.host, own=own, bare=bare)


def _open(context: ssl.SSLContext, headers: dict[str, str]) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
        timeout=aiohttp.ClientTimeout(total=CALL_SECONDS_MAX, sock_connect=CONNECT_SECONDS_MAX),
        auto_decompress=False,
        read_bufsize=BUFFER_BYTES,
    )


def _build_context(settings: client.Configuration, *, own: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if own and settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context

"""The API server of the cluster, as the coordinator's own account reaches it: its token and its CA are read anew for each use."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from rollout.errors import CoordinatorError
from rollout.protocol.auth import read_account_token
from rollout.protocol.tls import Trust, require_safe
from rollout_api.worker import ProgressWriting

CALL_SECONDS_MAX = 10.0
TROUBLES = (aiohttp.ClientError, TimeoutError, OSError, CoordinatorError)
"""What a session and the calls of one raise."""


class ApiServer:
    """Where ``api`` says. Raises CoordinatorError for an address that a token may not be sent to."""

    def __init__(self, api: ProgressWriting) -> None:
        require_safe(api.api_url)
        self._token_file = Path(api.token_file)
        self._trust = None if api.ca_file is None else Trust(Path(api.ca_file))
        self._keeps = False
        self._kept: tuple[ssl.SSLContext, aiohttp.TCPConnector] | None = None
        self.url = api.api_url.rstrip("/")

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Within it, sessions share connections, of one event loop."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            await self._drop()

    @asynccontextmanager
    async def session(self, content_type: str) -> AsyncIterator[aiohttp.ClientSession]:
        """For a few calls, each of at most CALL_SECONDS_MAX. Raises TROUBLES."""
        token = await asyncio.to_thread(read_account_token, self._token_file)
        keeps = self._keeps
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=CALL_SECONDS_MAX),
            connector=await self._connector(),
            connector_owner=not keeps,
            headers={"Authorization": f"Bearer {token}", "Content-Type": content_type},
        ) as session:
            yield session

    async def _connector(self) -> aiohttp.TCPConnector:
        """One of its own, or the one that is kept, as long as the API server is known by the same certificates."""
        if self._keeps and self._kept is not None:
            context, connector = self._kept
            if self._trust is None or self._trust.context() is context:
                return connector
            await self._drop()
        context = ssl.create_default_context() if self._trust is None else self._trust.context()
        connector = aiohttp.TCPConnector(ssl=context)
        if self._keeps:
            self._kept = context, connector
        return connector

    async def _drop(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept[1].close()

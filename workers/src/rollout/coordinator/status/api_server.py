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
        self.url = api.api_url.rstrip("/")

    @asynccontextmanager
    async def session(self, content_type: str) -> AsyncIterator[aiohttp.ClientSession]:
        """For a few calls, each of at most CALL_SECONDS_MAX. Raises TROUBLES."""
        token = await asyncio.to_thread(read_account_token, self._token_file)
        context = ssl.create_default_context() if self._trust is None else self._trust.context()
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=CALL_SECONDS_MAX),
            connector=aiohttp.TCPConnector(ssl=context),
            headers={"Authorization": f"Bearer {token}", "Content-Type": content_type},
        ) as session:
            yield session

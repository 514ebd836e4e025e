"""One ``generate`` of the vLLM engine: how far it is, and how it is interrupted.

vLLM gives the tokens of a sample when it ends, or when a pause aborts it. A request that reaches the
server behind a pause waits there, so that a pause is repeated until every answer is in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rollout.engines.vllm.server import VllmServer
from rollout.errors import EngineError
from rollout.seams import SampleProgress
from rollout.types import Completion, GenerateRequest

PAUSE_SECONDS_MAX = 30.0
PAUSE_AGAIN_SECONDS = 0.2
NOTHING_YET = Completion(token_ids=(), logprobs=(), finish="interrupted")
"""A sample whose request was not sent."""


class Call:
    """Which samples were begun and have ended; ``interrupted`` once somebody asked for what there is."""

    def __init__(self, server: VllmServer, requests: Sequence[GenerateRequest]) -> None:
        self.server, self.requests = server, requests
        self.interrupted = False
        self._begun: dict[tuple[int, int], float] = {}
        self._ended: dict[tuple[int, int], int] = {}
        self._token_seconds: list[float] = []
        self._pausing: asyncio.Task[None] | None = None

    def begin(self, row: int, place: int) -> None:
        """A sample's request is sent."""
        self._begun[row, place] = time.monotonic()

    def end(self, row: int, place: int, num_tokens: int) -> None:
        """A sample's answer is there."""
        self._ended[row, place] = num_tokens
        if num_tokens:
            took = time.monotonic() - self._begun[row, place]
            self._token_seconds.append(took / num_tokens)

    def leave(self, row: int, place: int) -> None:
        """No answer of a sample will come: it failed, or nobody waits for it any more."""
        self._ended.setdefault((row, place), 0)

    def interrupt(self) -> None:
        """Abort what runs. Idempotent."""
        if not self.interrupted:
            self.interrupted = True
            self._pausing = asyncio.create_task(self._pause())

    async def settle(self) -> None:
        """Wait until the server takes requests again. Raises EngineError when it does not."""
        if self._pausing is not None:
            await self._pausing

    async def _pause(self) -> None:
        try:
            await self._pause_until_all_ended()
            await self.server.call("/resume", seconds_max=PAUSE_SECONDS_MAX)
        except BaseException:
            # It may stay paused, and would answer nobody.
            self.server.broken = True
            raise

    async def _pause_until_all_ended(self) -> None:
        keep_cache = {"mode": "abort", "clear_cache": "false"}
        while self._begun.keys() - self._ended.keys() and not self.server.broken:
            await self.server.call("/pause", parameters=keep_cache, seconds_max=PAUSE_SECONDS_MAX)
            await asyncio.sleep(PAUSE_AGAIN_SECONDS)
        if self.server.broken:
            raise EngineError("vLLM broke while its samples were interrupted")

    def look(self) -> list[list[SampleProgress]]:
        """By request and seed.

        vLLM does not tell the tokens of a running sample: they are estimated from the pace of those that
        ended, 0 before the first.
        """
        return [
            [self._state(row, place) for place in range(len(request.seeds))]
            for row, request in enumerate(self.requests)
        ]

    def _state(self, row: int, place: int) -> SampleProgress:
        key = (row, place)
        if key in self._ended:
            return SampleProgress(state="ended", num_tokens=self._ended[key])
        if key not in self._begun:
            return SampleProgress(state="queued")
        paces = self._token_seconds
        pace = sum(paces) / len(paces) if paces else 0.0
        elapsed = time.monotonic() - self._begun[key]
        limit = self.requests[row].sampling.max_new_tokens - 1
        return SampleProgress(
            state="running", num_tokens=min(int(elapsed / pace), limit) if pace else 0
        )

"""Takes keys from the queue while this replica leads, and brings back what failed, after a pause."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollout_operator.controller.backoff import asked_seconds
from rollout_operator.controller.contract import Controller
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.errors import KubeError, NotLeader

log = logging.getLogger(__name__)

NOT_LEADER_SECONDS = 2.0


@dataclass(slots=True, kw_only=True)
class Workers:
    """Takes keys while this replica leads, and counts how it went. ``controllers``: one for each kind."""

    controllers: Mapping[str, Controller]
    queue: KeyQueue
    leading: asyncio.Event
    count: Callable[[str, float, float], None]
    clock: Callable[[], float] = time.monotonic

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.leading.wait()
            key, waited = await self.queue.take()
            began = self.clock()
            try:
                result = await self._one(key)
            finally:
                self.queue.done(key)
            self.count(result, self.clock() - began, waited)

    async def _one(self, key: Key) -> str:
        try:
            again = await self.controllers[key.kind].reconcile(key)
        except KubeError as error:
            wait = self.queue.retry(key, asked_seconds=asked_seconds(error))
            log.info("reconcile again key=%s seconds=%.1f error=%s", key, wait, error)
            return "retry"
        except NotLeader:
            self.queue.put_later(key, NOT_LEADER_SECONDS)
            return "not-leader"
        except Exception:
            self.queue.retry(key)
            log.exception("reconcile failed key=%s", key)
            return "error"
        if again is not None:
            self.queue.put_later(key, again)
        return "success"

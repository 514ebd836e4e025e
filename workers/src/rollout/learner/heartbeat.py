"""Tells the coordinator, from a thread of its own, that the learner lives and what it is doing."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from rollout.errors import RolloutError
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.messages import Heartbeat

log = logging.getLogger(__name__)


class Heart:
    """Beats while the context is open. A beat that fails is no failure: the next call will say so."""

    def __init__(self, client: CoordinatorClient, every_seconds: float) -> None:
        self._client = client
        self._every_seconds = every_seconds
        self._said = (0, "starting")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def say(self, step: int, state: str) -> None:
        """What the next beat reports."""
        self._said = (step, state)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()

    def join(self) -> None:
        """Wait for a beat that is on its way, once the context is left."""
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._every_seconds):
            step, state = self._said
            try:
                self._client.call(routes.LEARNER_HEARTBEAT, Heartbeat(state=state, step=step))
            except RolloutError as error:
                log.debug("heartbeat failed error=%s", error)

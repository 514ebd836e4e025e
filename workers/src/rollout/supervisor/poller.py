"""Asks the coordinator for its status from a thread, so that nothing it does can stall the supervisor."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from rollout.errors import RolloutError
from rollout.protocol.status import Status

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5


class StatusPoller:
    """Holds the newest status; ``stop_run`` asks the coordinator to end the run, without waiting."""

    def __init__(self, url: str, secret_file: Path, poll_seconds: float = POLL_SECONDS) -> None:
        self._url = url
        self._secret_file = secret_file
        self._poll_seconds = poll_seconds
        self._latest: Status | None = None
        self._answered_at = time.monotonic()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._stop_reason: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="status-poller")

    @property
    def latest(self) -> Status | None:
        """The newest status; None until the coordinator has answered once."""
        return self._latest

    @property
    def silent_seconds(self) -> float:
        """How long the coordinator has not answered."""
        return time.monotonic() - self._answered_at

    def start(self) -> None:
        """Start polling."""
        self._answered_at = time.monotonic()
        self._thread.start()

    def poll_now(self) -> None:
        """Ask again without waiting for the next turn."""
        self._wake.set()

    def stop_run(self, reason: str) -> None:
        """Have the coordinator told to end the run; repeated until it has heard."""
        self._stop_reason = reason
        self._wake.set()

    def close(self) -> None:
        """Stop polling."""
        self._over.set()
        self._wake.set()

    def _run(self) -> None:
        from rollout.protocol import routes
        from rollout.protocol.auth import read_token
        from rollout.protocol.client import CoordinatorClient
        from rollout.protocol.messages import Stop

        token = read_token(self._secret_file, "operator")
        client = CoordinatorClient.connect(self._url, token, patience_seconds=0.0)
        while not self._over.is_set():
            try:
                if self._stop_reason is not None:
                    client.call(routes.STOP, Stop(reason=self._stop_reason))
                    self._stop_reason = None
                self._latest = client.status()
                self._answered_at = time.monotonic()
            except RolloutError as error:
                log.debug("no status: %s", error)
            self._wake.wait(self._poll_seconds)
            self._wake.clear()
        client.close()

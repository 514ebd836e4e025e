"""A run's events on their way to a queue or a topic: each is written to a file once and sent until it was taken.

The file beside the run is the queue, behind a cursor that moves once the service has answered: nothing is kept in memory,
and neither a kill nor a full disk loses an event. What was taken and not noted is sent again, the same line with the same id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from blake3 import blake3

from rollout.common.atomic_files import replace_text
from rollout.errors import StoreError
from rollout.events.cloud_events import EventSource, write_event
from rollout.events.senders import Send, open_sender
from rollout.run_events import RunEnd, RunEvent
from rollout.tracking.telling import Teller
from rollout_api.fields.event_targets import EventTarget

OUTBOX, CURSOR = "events.jsonl", "sent"
READ_BYTES = 1 << 20
"""Read at once; no event is longer."""


class EventTracker:
    """Sends one run's events to one target, from a thread of its own. ``close`` when done; what is left is sent by the next one.

    Raises StoreError where its folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        target: EventTarget,
        source: EventSource,
        opener: Callable[[EventTarget], Send] = open_sender,
    ) -> None:
        self.target, self._source, self._opener = target, source, opener
        self._send: Send | None = None
        self._folder = folder / blake3(target.uri.encode()).hexdigest()[:12]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._outbox = (self._folder / OUTBOX).open("a+b", buffering=0)
            self._seen = self._recover()
            self._sent = self._read_cursor()
        except OSError as error:
            raise StoreError(f"{self._folder} cannot be written: {error}") from error
        self.teller = Teller(
            f"events to {target.uri}", self._send_next, self._waiting, self._outbox.close
        )
        self.teller.start()

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Steps are no events."""

    def announce(self, events: Sequence[RunEvent]) -> None:
        """Take those that are new; never waits for the service. Raises StoreError where the disk is full: they come again."""
        for event in events:
            ident = f"{self._source.uid}/{event.ident}"
            if ident not in self._seen:
                self._append(write_event(self._source, event, datetime.now(UTC)).encode() + b"\n")
                self._seen.add(ident)
                self.teller.wake()

    @property
    def trouble(self) -> str:
        """Why nothing is taken, where sending fails time and again."""
        return f"{self.target.uri}: {self.teller.trouble}" if self.teller.trouble else ""

    def close(self, outcome: RunEnd | None = None) -> None:
        """Send what is left, for so long as the end of a run may wait; idempotent."""
        del outcome  # it is among the events
        self.teller.close()

    def _append(self, line: bytes) -> None:
        try:
            os.ftruncate(self._outbox.fileno(), self._size)  # what a full disk left of a line
            self._write(line)
            os.fsync(self._outbox.fileno())
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._folder / OUTBOX} cannot be written: {error}") from error
        self._size += len(line)

    def _write(self, line: bytes) -> None:
        """All of it: the system may take a part at once, and says of the next one why not."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._outbox.fileno(), rest) :]

    def _recover(self) -> set[str]:
        """The ids that are there; a line that was not finished is cut off, and its event found again."""
        self._outbox.seek(0)
        data = self._outbox.read()
        self._size = data.rfind(b"\n") + 1
        os.ftruncate(self._outbox.fileno(), self._size)
        return {json.loads(line)["id"] for line in data[: self._size].splitlines()}

    def _read_cursor(self) -> int:
        try:
            return min(self._size, int((self._folder / CURSOR).read_text()))
        except (FileNotFoundError, ValueError):
            return 0

    def _waiting(self) -> str:
        return f"what it has not taken waits in {self._folder / OUTBOX}"

    def _send_next(self) -> bool:
        """Whether there may be more."""
        data = os.pread(self._outbox.fileno(), min(READ_BYTES, self._size - self._sent), self._sent)
        line = data[: data.find(b"\n") + 1]
        if not line:
            return False
        try:
            self._send = self._send or self._opener(self.target)
            self._send(json.loads(line)["id"], self._source.uid, line.decode().rstrip("\n"))
        except Exception:
            self._send = None  # a new client looks for credentials anew
            raise
        self._note_sent(self._sent + len(line))
        return True

    def _note_sent(self, offset: int) -> None:
        replace_text(self._folder / CURSOR, f"{offset}\n")
        self._sent = offset

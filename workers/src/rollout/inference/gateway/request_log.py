"""One line for each request that has ended, in a file a day; bodies only where they were asked for, and for so many days.

Never holds an answer up: lines go through a bounded queue to a thread. When it is full the bodies are left out first, then
lines, and both are counted. A key is named by its public id.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

LINES_MAX = 10_000
BODIES_MAX = 1_000
"""Lines that wait; with more than this many, bodies are left out."""
BODY_BYTES_MAX = 256 << 10
BATCH_MAX = 500
PREFIX, SUFFIX = "requests-", ".jsonl"


class RequestLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Times are seconds; ``code`` 499: the client left. ``input`` and ``output`` are bodies, text.

    ``input_cut`` and ``output_cut``: what was longer than BODY_BYTES_MAX is not kept at all.
    """

    time: float
    id: str
    key: str
    path: str
    asked: str
    version: str
    digest: str
    engine: str
    code: int
    error: str = ""
    stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    first_byte_seconds: float = 0.0
    seconds: float = 0.0
    retries: int = 0
    client: str = ""
    client_retries: str = ""
    trace: str = ""
    input: str = ""
    output: str = ""
    input_cut: bool = False
    output_cut: bool = False


class RequestLog:
    """Lines in ``folder``, kept for ``days``; ``bodies``: with what was asked and answered. ``dropped`` is called for each loss."""

    def __init__(
        self, folder: Path, *, bodies: bool, days: int, dropped: Callable[[], None]
    ) -> None:
        self.bodies = bodies
        self._folder = folder
        self._days = days
        self._dropped = dropped
        self._lines: queue.Queue[RequestLine | None] = queue.Queue(LINES_MAX)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def add(self, line: RequestLine) -> None:
        """Take a line, or what there is room for; never waits."""
        if self._lines.qsize() > BODIES_MAX and (line.input or line.output):
            line = msgspec.structs.replace(
                line, input="", output="", input_cut=True, output_cut=True
            )
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped()

    def close(self, seconds_max: float = 5.0) -> None:
        """Write what waits and end."""
        try:
            self._lines.put(None, timeout=seconds_max)
        except queue.Full:
            log.warning("the request log did not end in time lines=%d", self._lines.qsize())
            return
        self._thread.join(seconds_max)

    def _run(self) -> None:
        going = True
        while going:
            lines = [self._lines.get()]
            while len(lines) < BATCH_MAX and not self._lines.empty():
                lines.append(self._lines.get())
            going = None not in lines
            self._write([one for one in lines if one is not None])

    def _write(self, lines: list[RequestLine]) -> None:
        if not lines:
            return
        path = self._folder / f"{PREFIX}{datetime.now(UTC):%Y-%m-%d}{SUFFIX}"
        fresh = not path.exists()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
        except OSError as error:
            log.error("request log is not written path=%s error=%s", path, error)  # noqa: TRY400 - said once a batch
            for _ in lines:
                self._dropped()
            return
        if fresh:
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = f"{datetime.now(UTC) - timedelta(days=self._days):%Y-%m-%d}"
        for path in self._folder.glob(f"{PREFIX}*{SUFFIX}"):
            if path.name[len(PREFIX) : -len(SUFFIX)] < oldest:
                path.unlink(missing_ok=True)


class BodyKeeper:
    """What of an answer goes into the log: all of it, or nothing where it is too long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.cut = False

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self._size += len(data)
        self.cut = self.cut or self._size > BODY_BYTES_MAX
        if self.cut:
            self._parts.clear()
        else:
            self._parts.append(data)

    def text(self) -> str:
        """What was kept."""
        return b"".join(self._parts).decode(errors="replace")

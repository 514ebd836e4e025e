"""One batch, from its file to its answers. What it has written says how far it is: it goes on from there after a crash.

A line is answered at least once and written once. Bounded: rows under way, bytes of them, and a day.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from rollout.inference.gateway.batches.asking import RowCall
from rollout.inference.gateway.batches.lines import (
    BatchLine,
    render_answer,
    render_refusal,
    render_unanswered,
)
from rollout.inference.gateway.batches.objects import FileBatch, LineError, Status, move
from rollout.inference.gateway.batches.reading import mend, parsed_lines, scan, take_lines
from rollout.inference.gateway.batches.store import FileStore
from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.rules.asks import read_ask
from rollout.inference.gateway.rules.pooling import require_route
from rollout.inference.gateway.rules.refusals import ApiRefusal, invalid
from rollout.inference.gateway.state import GatewayState

ROWS_MAX = 256
BYTES_MAX = 64 << 20
"""Of one batch under way; one row always."""
LOOK_SECONDS = 0.5
UNANSWERED = {
    "expired": ("batch_expired", "the batch expired before this request was answered"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was answered"),
}


@dataclass(slots=True, kw_only=True)
class BatchWork:
    """The work on ``batch``. ``held``: the server begins nothing more."""

    state: GatewayState
    store: FileStore
    batch: FileBatch
    held: Callable[[], bool]
    _done: set[int] = field(default_factory=set)
    _parts: dict[str, BinaryIO] = field(default_factory=dict)
    _rows: dict[asyncio.Task[None], int] = field(default_factory=dict)

    async def run(self) -> None:
        """Work until it has ended, or the server begins nothing more. Raises OSError, and then may be run again."""
        if self.batch.status == "validating":
            await self._validate()
        with ExitStack() as stack:
            if self.batch.status in {"in_progress", "cancelling"}:
                await self._open_parts(stack)
                ending = await self._answer()
                if ending is None:
                    return
                await self._leave(ending)
            if self.batch.status == "finalizing":
                self._publish()

    async def _validate(self) -> None:
        file = self.store.file(self.batch.owner, self.batch.input_file_id)
        path = None if file is None else self.store.content(file)
        if path is None or not await asyncio.to_thread(path.exists):
            errors: tuple[LineError, ...] = (
                LineError(code="missing_file", message="the input file is gone"),
            )
            return self._fail(errors)
        most = self.state.settings.body_bytes_max
        found = await asyncio.to_thread(scan, path, self.batch.endpoint, most)
        self.batch = self._latest()
        errors = found.errors or self._judge_model(found.model)
        if errors:
            return self._fail(errors)
        status: Status = "in_progress" if self.batch.status == "validating" else "cancelling"
        self._save(move(self.batch, status, time.time(), total=found.total, model=found.model))
        return None

    def _judge_model(self, model: str | None) -> tuple[LineError, ...]:
        key = self._key()
        if key is None or model is None:
            return ()
        try:
            pool = self.state.resolve(model, key)
            require_route(pool.version.task, pool.version.name, self.batch.endpoint)
        except ApiRefusal as refusal:
            code = refusal.code or refusal.reason
            return (LineError(code=code, message=refusal.message, param="body.model"),)
        if pool.slots >= 2:
            return ()
        message = (
            f"{pool.version.name} answers one request at a time, which is kept for others: serve it"
            " with more --replicas or --max-num-seqs"
        )
        return (LineError(code="no_room", message=message, param="body.model"),)

    def _fail(self, errors: tuple[LineError, ...]) -> None:
        self._save(move(self.batch, "failed", time.time(), errors=errors))

    async def _open_parts(self, stack: ExitStack) -> None:
        rows = {}
        for what in ("output", "error"):
            path = self.store.part(self.batch, what)
            rows[what] = await asyncio.to_thread(mend, path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._parts[what] = stack.enter_context(os.fdopen(descriptor, "ab"))
        self._done = rows["output"] | rows["error"]
        self._count(completed=len(rows["output"]), failed=len(rows["error"]))

    async def _answer(self) -> Status | None:
        """Ask for every line that has no answer; what the batch ends as, None where it goes on another time."""
        try:
            return await self._feed()
        finally:
            for row in self._rows:
                row.cancel()
            await asyncio.gather(*self._rows, return_exceptions=True)
            self._rows.clear()

    async def _feed(self) -> Status | None:
        lines = self._lines()
        rows_max = self._rows_max()
        while chunk := await asyncio.to_thread(take_lines, lines):
            for line in (one for one in chunk if one.row not in self._done):
                if not await self._make_room(line, rows_max):
                    return await self._stop()
                self._rows[asyncio.create_task(self._row(line))] = len(line.body)
        while self._rows and not self._stopped():
            await self._wait()
        return await self._stop() if self._rows else self._ending() or "completed"

    async def _make_room(self, line: BatchLine, rows_max: int) -> bool:
        """Whether one more may be asked, as soon as it may."""
        while self._rows and not self._has_room(line, rows_max) and not self._stopped():
            await self._wait()
        return not self._stopped()

    async def _stop(self) -> Status | None:
        """A server that ends lets end what is under way, for as long as it drains."""
        while self._rows and self._ending() is None:
            await self._wait()
        return self._ending()

    async def _wait(self) -> None:
        done, _ = await asyncio.wait(
            self._rows, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for row in done:
            del self._rows[row]
            row.result()

    def _has_room(self, line: BatchLine, rows_max: int) -> bool:
        return len(self._rows) < rows_max and sum(self._rows.values()) + len(line.body) <= BYTES_MAX

    def _rows_max(self) -> int:
        """As many as the engines take, one less than the key may have at a time."""
        key = self._key()
        if key is None or self.batch.model is None:
            return 1
        try:
            rows = min(ROWS_MAX, self.state.resolve(self.batch.model, key).slots)
        except ApiRefusal:  # its version is away; each row waits for it by itself
            rows = 1
        return rows if key.in_flight_max is None else max(1, min(rows, key.in_flight_max - 1))

    def _stopped(self) -> bool:
        return self.held() or self._ending() is not None

    def _ending(self) -> Status | None:
        if self._latest().status == "cancelling" or self._key() is None:
            return "cancelled"
        return "expired" if time.time() >= self.batch.expires_at else None

    async def _row(self, line: BatchLine) -> None:
        request_id = f"req_{uuid.uuid4().hex}"
        try:
            ask = read_ask(self.batch.endpoint, line.body)
            if ask.stream:
                raise invalid(
                    "a batch does not stream", param="stream", code="unsupported_parameter"
                )
            body = await self._call(line, ask, request_id).answer()
            told = render_answer(self.batch.id, line, 200, request_id, body)
        except ApiRefusal as refusal:
            self._write("error", line, render_refusal(self.batch.id, line, request_id, refusal))
        except (ValueError, RecursionError):
            refusal = ApiRefusal(502, "the engine's answer is no JSON", code="engine_error")
            self._write("error", line, render_refusal(self.batch.id, line, request_id, refusal))
        else:
            self._write("output", line, told)

    def _call(self, line: BatchLine, ask: Any, request_id: str) -> RowCall:
        key = self._key()
        if key is None:
            raise ApiRefusal(401, "this key was revoked", code="invalid_api_key", reason="revoked")
        return RowCall(
            state=self.state, key=key, ask=ask, size_bytes=len(line.body), request_id=request_id
        )

    def _write(self, what: str, line: BatchLine, told: bytes) -> None:
        """One line, whole before anything else is known of it; a disk that is full raises, and the line is asked again."""
        part = self._parts[what]
        part.write(told)
        part.flush()
        self._done.add(line.row)
        batch = self.batch
        if what == "output":
            self._count(completed=batch.completed + 1, failed=batch.failed)
        else:
            self._count(completed=batch.completed, failed=batch.failed + 1)

    async def _leave(self, ending: Status) -> None:
        """Nothing more is asked: say so for every line that has no answer."""
        if ending in UNANSWERED:
            await asyncio.to_thread(self._write_unanswered, *UNANSWERED[ending])
        for part in self._parts.values():
            await asyncio.to_thread(os.fsync, part.fileno())
        answered = (
            self.batch.completed + self.batch.failed
        )  # more than nothing, where it was never looked at
        total = max(self.batch.total, answered)
        self.batch = msgspec.structs.replace(self._latest(), total=total)
        self._save(move(self.batch, "finalizing", time.time(), ending=ending))

    def _write_unanswered(self, code: str, message: str) -> None:
        for line in self._lines():
            if isinstance(line, BatchLine) and line.row not in self._done:
                self._write("error", line, render_unanswered(self.batch.id, line, code, message))

    def _publish(self) -> None:
        batch, owner = self.batch, self.batch.owner
        for what, file_id in (("output", batch.output_id), ("error", batch.error_id)):
            part = self.store.part(batch, what)
            if part.exists() and not part.stat().st_size:
                part.unlink()
            self.store.add_output(owner, file_id, part, f"{batch.id}_{what}.jsonl")
        self._save(move(batch, batch.ending, time.time()))

    def _lines(self) -> Any:
        file = self.store.file(self.batch.owner, self.batch.input_file_id)
        if file is None:
            return iter(())
        most = self.state.settings.body_bytes_max
        return parsed_lines(self.store.content(file), self.batch.endpoint, most)

    def _key(self) -> ApiKey | None:
        ring = self.state.ring
        return ring.find(self.batch.owner) if ring.keeps(self.batch.owner) else None

    def _latest(self) -> FileBatch:
        return self.store.batch(self.batch.owner, self.batch.id) or self.batch

    def _count(self, *, completed: int, failed: int) -> None:
        self.batch = msgspec.structs.replace(self._latest(), completed=completed, failed=failed)
        self.store.keep_counts(self.batch)

    def _save(self, batch: FileBatch) -> None:
        self.batch = batch
        self.store.save(batch)

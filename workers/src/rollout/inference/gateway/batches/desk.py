"""``/v1/files`` and ``/v1/batches``: what a key is told of its own, and of nobody else's. Answers are OpenAI's."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from rollout.inference.gateway.batches.objects import (
    ID_BYTES,
    WINDOW,
    WINDOW_SECONDS,
    FileBatch,
    StoredFile,
    move,
)
from rollout.inference.gateway.batches.runner import BatchRunner
from rollout.inference.gateway.batches.uploads import CHUNK_BYTES, receiving
from rollout.inference.gateway.exchange import REQUEST_ID
from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.rules.asks import decode_object
from rollout.inference.gateway.rules.fields import BATCHED
from rollout.inference.gateway.rules.refusals import ApiRefusal, invalid, unavailable

OPEN_BATCHES_MAX = 32
"""Of one key."""
TRANSFERS_MAX = 64
"""Files that come in and go out at a time, of all keys."""
FILES_LISTED_MAX, BATCHES_LISTED_MAX, BATCHES_LISTED = 10_000, 100, 20
METADATA_MAX, METADATA_NAME_MAX, METADATA_VALUE_MAX = 16, 64, 512
CREATE_FIELDS = frozenset({"input_file_id", "endpoint", "completion_window", "metadata"})
_ID = re.compile(r"(file-|batch_)[0-9a-f]{32}")

Answer = dict[str, Any] | web.StreamResponse
Handler = Callable[[ApiKey, web.Request], Awaitable[Answer]]


class BatchDesk:
    """Answers who asks for files and batches. Every handler raises ApiRefusal."""

    def __init__(self, runner: BatchRunner, chunk_seconds: float, write_seconds: float) -> None:
        self._runner = runner
        self._store = runner.store
        self._chunk_seconds = chunk_seconds
        self._write_seconds = write_seconds
        self._transfers = 0

    @property
    def routes(self) -> Sequence[tuple[str, str, Handler]]:
        """Method, path, and who answers."""
        return (
            ("POST", "/v1/files", self.upload),
            ("GET", "/v1/files", self.list_files),
            ("GET", "/v1/files/{id}", self.show_file),
            ("GET", "/v1/files/{id}/content", self.send_file),
            ("DELETE", "/v1/files/{id}", self.delete_file),
            ("POST", "/v1/batches", self.create),
            ("GET", "/v1/batches", self.list_batches),
            ("GET", "/v1/batches/{id}", self.show_batch),
            ("POST", "/v1/batches/{id}/cancel", self.cancel),
        )

    async def upload(self, key: ApiKey, request: web.Request) -> Answer:
        """Keep a file."""
        store, place = self._store, self._store.begin_upload(key.id)
        with self._transfer():
            room = store.room(key.id)
            async with receiving(
                request, place, room=room, chunk_seconds=self._chunk_seconds
            ) as upload:
                if upload.size > store.room(key.id):  # others of this key have come meanwhile
                    raise ApiRefusal(
                        413,
                        "this key's files are full: delete some",
                        code="files_full",
                        reason="too_large",
                    )
                return store.add(key.id, place, upload.filename or "").describe()

    async def list_files(self, key: ApiKey, request: web.Request) -> Answer:
        """A key's files, newest first unless asked otherwise."""
        files = self._store.files(key.id)
        purpose = request.query.get("purpose")
        if purpose is not None:
            files = [one for one in files if one.purpose == purpose]
        order = request.query.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise invalid("'order' must be asc or desc", param="order", code="invalid_value")
        files = files if order == "asc" else files[::-1]
        return _page(request, files, FILES_LISTED_MAX, FILES_LISTED_MAX)

    async def show_file(self, key: ApiKey, request: web.Request) -> Answer:
        """One file, without its bytes."""
        return self._find_file(key, request.match_info["id"]).describe()

    async def send_file(self, key: ApiKey, request: web.Request) -> Answer:
        """The bytes of one."""
        file = self._find_file(key, request.match_info["id"])
        headers = {"Content-Type": "application/octet-stream", "x-request-id": request[REQUEST_ID]}
        response = web.StreamResponse(headers=headers)
        response.content_length = file.bytes
        with self._transfer(), self._store.content(file).open("rb") as data:
            await response.prepare(request)
            try:
                while chunk := await asyncio.to_thread(data.read, CHUNK_BYTES):
                    async with asyncio.timeout(self._write_seconds):
                        await response.write(chunk)
            except TimeoutError:  # nobody reads: what was sent is not whole, and is cut
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def delete_file(self, key: ApiKey, request: web.Request) -> Answer:
        """Forget one, unless a batch needs it."""
        file = self._find_file(key, request.match_info["id"])
        for batch in self._store.batches(key.id):
            if batch.open and file.id == batch.input_file_id:
                raise invalid(
                    f"{batch.id} is not done with this file: cancel it first", code="file_in_use"
                )
        self._store.delete(file)
        return {"id": file.id, "object": "file", "deleted": True}

    async def create(self, key: ApiKey, request: web.Request) -> Answer:
        """Begin a batch."""
        fields = await self._read_fields(request)
        _judge_fields(fields)
        file = self._find_file(key, fields.get("input_file_id"), param="input_file_id")
        if file.purpose != "batch":
            raise invalid("the file was not uploaded for a batch", param="input_file_id")
        num_open = sum(one.open for one in self._store.batches(key.id))
        if num_open >= OPEN_BATCHES_MAX:
            message = f"this key has {num_open} batches that have not ended, as many as it may"
            raise ApiRefusal(
                429, message, code="too_many_batches", retry_after=60, reason="key_limit"
            )
        now = int(time.time())
        batch = FileBatch(
            id=_new_batch_id(),
            owner=key.id,
            endpoint=fields["endpoint"],
            input_file_id=file.id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            metadata=fields.get("metadata"),
        )
        self._store.save(batch)
        self._runner.wake()
        return batch.describe()

    async def list_batches(self, key: ApiKey, request: web.Request) -> Answer:
        """A key's batches, newest first."""
        found = self._store.batches(key.id)[::-1]
        return _page(request, found, BATCHES_LISTED, BATCHES_LISTED_MAX)

    async def show_batch(self, key: ApiKey, request: web.Request) -> Answer:
        """One batch."""
        return self._find_batch(key, request).describe()

    async def cancel(self, key: ApiKey, request: web.Request) -> Answer:
        """Ask no more of its requests."""
        batch = self._find_batch(key, request)
        if batch.status == "cancelling":
            return batch.describe()
        if batch.status not in {"validating", "in_progress"}:
            raise invalid(f"the batch is {batch.status}", code="batch_ended")
        batch = move(batch, "cancelling", time.time())
        self._store.save(batch)
        self._runner.wake()
        return batch.describe()

    async def _read_fields(self, request: web.Request) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._chunk_seconds):
                return decode_object(await request.read())
        except TimeoutError:
            message = f"the body did not come within {self._chunk_seconds:g} s"
            raise ApiRefusal(408, message, code="request_timeout", reason="slow_client") from None

    def _find_file(self, key: ApiKey, file_id: Any, param: str = "id") -> StoredFile:
        good = isinstance(file_id, str) and _ID.fullmatch(file_id)
        file = self._store.file(key.id, file_id) if good else None
        if file is None:
            message = f"No such File object: {str(file_id)[:80]}"
            raise ApiRefusal(404, message, param=param, code="not_found", reason="no_file")
        return file

    def _find_batch(self, key: ApiKey, request: web.Request) -> FileBatch:
        batch_id = request.match_info["id"]
        batch = self._store.batch(key.id, batch_id) if _ID.fullmatch(batch_id) else None
        if batch is None:
            message = f"No such Batch object: {batch_id[:80]}"
            raise ApiRefusal(404, message, param="id", code="not_found", reason="no_batch")
        return batch

    @contextmanager
    def _transfer(self) -> Iterator[None]:
        if self._transfers >= TRANSFERS_MAX:
            raise unavailable("too many files come and go at a time; try again", reason="full")
        self._transfers += 1
        try:
            yield
        finally:
            self._transfers -= 1


def _new_batch_id() -> str:
    return f"batch_{secrets.token_hex(ID_BYTES)}"


def _judge_fields(fields: dict[str, Any]) -> None:
    for name in fields:
        if name not in CREATE_FIELDS:
            shown = name[:80]
            raise invalid(
                f"'{shown}' is not supported here", param=shown, code="unsupported_parameter"
            )
    if fields.get("endpoint") not in BATCHED:
        message = f"'endpoint': batches are of {', '.join(BATCHED)} only"
        raise invalid(message, param="endpoint", code="unsupported_parameter")
    if fields.get("completion_window") != WINDOW:
        raise invalid(
            f"'completion_window' must be {WINDOW}", param="completion_window", code="invalid_value"
        )
    metadata = fields.get("metadata")
    if metadata is not None and not _is_metadata(metadata):
        message = (
            f"'metadata' may have {METADATA_MAX} texts, of {METADATA_VALUE_MAX} characters, by names"
            f" of {METADATA_NAME_MAX}"
        )
        raise invalid(message, param="metadata", code="invalid_value")


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= METADATA_MAX
        and all(
            isinstance(text, str)
            and len(text) <= METADATA_VALUE_MAX
            and len(name) <= METADATA_NAME_MAX
            for name, text in value.items()
        )
    )


def _page(
    request: web.Request, found: Sequence[StoredFile] | Sequence[FileBatch], default: int, most: int
) -> Answer:
    """From behind ``after``, up to ``limit``."""
    given = request.query.get("limit", str(default))
    if not (given.isascii() and given.isdigit() and len(given) < 7 and 1 <= int(given) <= most):
        raise invalid(f"'limit' must be from 1 to {most}", param="limit", code="invalid_value")
    after = request.query.get("after")
    place = 0
    if after is not None:
        ids = [one.id for one in found]
        if after not in ids:
            message = f"No such object, to go on behind: {after[:80]}"
            raise ApiRefusal(404, message, param="after", code="not_found", reason="no_file")
        place = ids.index(after) + 1
    shown = found[place : place + int(given)]
    return {
        "object": "list",
        "data": [one.describe() for one in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": place + len(shown) < len(found),
    }

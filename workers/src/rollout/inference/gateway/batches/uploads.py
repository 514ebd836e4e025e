"""A file on its way in: ``multipart/form-data``, streamed to disk, within bounds; nothing of it is left where it does not come whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from rollout.inference.gateway.rules.refusals import ApiRefusal, invalid

FILE_BYTES_MAX = 200 << 20
PARTS_MAX = 8
FIELD_BYTES_MAX = 1024
NAME_CHARACTERS_MAX = 256
CHUNK_BYTES = 1 << 18
UPLOAD_SECONDS_MAX = 600.0
PURPOSE = "batch"


@dataclass(slots=True, kw_only=True)
class Upload:
    """What has come. ``filename`` is the client's text."""

    purpose: str | None = None
    filename: str | None = None
    size: int = 0


@asynccontextmanager
async def receiving(
    request: web.Request, place: Path, *, room: int, chunk_seconds: float
) -> AsyncIterator[Upload]:
    """The file of a request, at ``place`` until the block ends. Raises ApiRefusal."""
    try:
        async with asyncio.timeout(UPLOAD_SECONDS_MAX):
            upload = await _receive(request, place, room, chunk_seconds)
        yield upload
    except TimeoutError:
        message = (
            f"nothing came for {chunk_seconds:g} s, or not all within {UPLOAD_SECONDS_MAX:g} s"
        )
        raise ApiRefusal(408, message, code="request_timeout", reason="slow_client") from None
    finally:
        _remove(place)


async def _receive(request: web.Request, place: Path, room: int, chunk_seconds: float) -> Upload:
    if request.content_type != "multipart/form-data":
        raise invalid("a file is uploaded as multipart/form-data", code="invalid_multipart")
    most = min(FILE_BYTES_MAX, room)
    _require_room(request.content_length or 0, most + PARTS_MAX * FIELD_BYTES_MAX, room)
    upload = Upload()
    try:
        reader = await request.multipart()
        for _ in range(PARTS_MAX):
            async with asyncio.timeout(chunk_seconds):
                part = await reader.next()
            if part is None:
                break
            if not isinstance(part, BodyPartReader):
                raise invalid("a part of the form is a form", code="invalid_multipart")
            await _take_part(part, upload, place, most, room, chunk_seconds)
        else:
            raise invalid(f"more than {PARTS_MAX} parts", code="invalid_multipart")
    except (ValueError, AssertionError, HttpProcessingError, web.HTTPException) as error:
        # What aiohttp says of a form that is none; what it met is the client's, and not told back.
        raise invalid("this is no multipart/form-data", code="invalid_multipart") from error
    return _require_whole(upload)


async def _take_part(
    part: BodyPartReader, upload: Upload, place: Path, most: int, room: int, seconds: float
) -> None:
    if part.name == "file" and upload.filename is None:
        upload.filename = (part.filename or "")[:NAME_CHARACTERS_MAX]
        await _to_disk(part, upload, place, most, room, seconds)
        return
    if part.name != "purpose":
        shown = (part.name or "")[:80]
        raise invalid(f"unknown or repeated field {shown!r}", param=shown, code="unknown_parameter")
    async with asyncio.timeout(seconds):
        found = await part.read_chunk(FIELD_BYTES_MAX)
        if not part.at_eof():
            raise invalid("'purpose' is too long", param="purpose")
    upload.purpose = found.decode(errors="replace")


async def _to_disk(
    part: BodyPartReader, upload: Upload, place: Path, most: int, room: int, seconds: float
) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while True:
            async with asyncio.timeout(seconds):
                chunk = await part.read_chunk(CHUNK_BYTES)
            if not chunk:
                break
            upload.size += len(chunk)
            _require_room(upload.size, most, room)
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(_sync, file.fileno(), file.flush)


def _remove(place: Path) -> None:
    place.unlink(missing_ok=True)


def _sync(descriptor: int, flush: object) -> None:
    assert callable(flush)
    flush()
    os.fsync(descriptor)


def _require_room(size: int, most: int, room: int) -> None:
    if size <= most:
        return
    if room < FILE_BYTES_MAX:
        message = f"this key's files may have {room} bytes more: delete some"
        raise ApiRefusal(413, message, code="files_full", reason="too_large")
    message = f"a file may have {FILE_BYTES_MAX} bytes"
    raise ApiRefusal(413, message, code="file_too_large", reason="too_large")


def _require_whole(upload: Upload) -> Upload:
    if upload.purpose is None:
        raise invalid("'purpose' is missing", param="purpose", code="missing_required_parameter")
    if upload.purpose != PURPOSE:
        message = f"'purpose': files are kept for {PURPOSE} only"
        raise invalid(message, param="purpose", code="unsupported_parameter")
    if upload.filename is None:
        raise invalid("'file' is missing", param="file", code="missing_required_parameter")
    if not upload.size:
        raise invalid("'file' is empty", param="file", code="empty_file")
    return upload

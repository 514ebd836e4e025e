"""What was saved as a tar of its folder, sent as it is read: one at a time is made, in a folder of the service's own, and few wait to be sent.

Bytes of what is sent were copied first, so that deleting it meanwhile does not spoil it.
"""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from rollout.errors import ModelNotFound, SpecError
from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.rules.limits import allows
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.registry import AnySaved, Registry, SavedState, SavedVersion

CHUNK_BYTES = 1 << 20
COPIES_MAX, COPIES_OF_KEY_MAX = 8, 2
"""On the disk at once, each until it is sent."""
STALL_SECONDS = 120.0
"""A client that takes nothing for so long is given up."""
TAR_TYPE = "application/x-tar"
FOLDER = "model"
"""The folder's name in the archive."""


@dataclass(slots=True, kw_only=True)
class Downloads:
    """Owns ``scratch``; ``write`` makes the folder of something saved, ``still`` keeps its bytes meanwhile."""

    scratch: Path
    write: Callable[[AnySaved, Path], None]
    still: Callable[[], AbstractContextManager[None]]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _copies: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Remove what a process that was killed left."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    async def send(self, saved: AnySaved, owner: str, request: web.Request) -> web.StreamResponse:
        """The answer with the tar, to a caller who may have it. Raises CallRefused, StoreError."""
        with self._counted(owner):
            self.scratch.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self.scratch) as place:
                folder = Path(place) / FOLDER
                await self._make(saved, folder)
                return await _send(folder, request)

    async def _make(self, saved: AnySaved, folder: Path) -> None:
        async with self._turn:
            with self.still():
                try:
                    await asyncio.to_thread(self.write, saved, folder)
                except (SpecError, ModelNotFound) as error:
                    raise CallRefused(str(error)) from error

    @contextmanager
    def _counted(self, owner: str) -> Iterator[None]:
        if self._copies[owner] >= COPIES_OF_KEY_MAX or self._copies.total() >= COPIES_MAX:
            raise CallRefused("archives are being sent, the most there may be; try again", 429)
        self._copies[owner] += 1
        try:
            yield
        finally:
            self._copies[owner] -= 1


def require_archive(
    downloads: Downloads | None, registry: Registry, path: str, key: ApiKey
) -> tuple[Downloads, AnySaved]:
    """What is asked for, where the caller may read it. Raises CallRefused."""
    kind = SavedState if registry.get(SavedState, path) is not None else SavedVersion
    saved = registry.require_readable(kind, path, key.name)
    if not allows(key, saved.base):
        raise CallRefused(
            f"{saved.base} is not served to this key, nor what was trained over it", 422
        )
    if downloads is None:
        raise not_offered("archive", "export what was saved with rollout model export")
    if isinstance(saved, SavedState) and saved.adapter is None:
        raise not_offered(
            "archive: the state of a model whose weights are all trained",
            "save_weights_for_sampler, and take these",
        )
    return downloads, saved


async def _send(folder: Path, request: web.Request) -> web.StreamResponse:
    parts = await asyncio.to_thread(_list_parts, folder)
    response = web.StreamResponse(headers={"Content-Type": TAR_TYPE})
    sizes = sum(len(head) + _padded(size) for head, size, _ in parts)
    response.content_length = sizes + 2 * tarfile.BLOCKSIZE
    await response.prepare(request)
    for head, size, path in parts:
        await _write(response, head)
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                await _write(response, chunk)
        await _write(response, bytes(_padded(size) - size))
    await _write(response, bytes(2 * tarfile.BLOCKSIZE))
    await response.write_eof()
    return response


def _list_parts(folder: Path) -> list[tuple[bytes, int, Path]]:
    """The head, the size and the place of each file."""
    sizes = {path: path.stat().st_size for path in sorted(folder.iterdir())}
    return [(_head(path.name, size), size, path) for path, size in sizes.items()]


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(STALL_SECONDS):
        await response.write(data)


def _head(name: str, size: int) -> bytes:
    told = tarfile.TarInfo(f"{FOLDER}/{name}")
    told.size, told.mode = size, 0o644
    return told.tobuf(tarfile.PAX_FORMAT)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

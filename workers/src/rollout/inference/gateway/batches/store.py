"""A folder of files and batches, a sub-folder for each key. One server at a time has it; nobody else can read it.

Records are small JSON files that are replaced as a whole. A path is made of ids that were made here, never of a
client's text; and what a key asks for is looked up among its own.
"""

from __future__ import annotations

import fcntl
import logging
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from rollout.common.atomic_files import replacing
from rollout.errors import SpecError
from rollout.inference.gateway.batches.objects import ID_BYTES, FileBatch, StoredFile

log = logging.getLogger(__name__)

FILES_MAX = 1000
"""Of one key."""
BYTES_MAX = 4 << 30
"""Of one key's files together; answers of its batches count, and are not refused."""
BATCHES_MAX = 1000
"""Of one key; of more, the oldest that have ended are forgotten."""
_OWNER = re.compile(r"[0-9a-f]{16}")

R = TypeVar("R", StoredFile, FileBatch)


class FileStore:
    """The records of a folder, in memory; its bytes on disk. Raises SpecError where another server has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (folder / ".lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise SpecError(
                f"--files {folder}: another server has this folder; give each its own"
            ) from error
        self._files: dict[str, dict[str, StoredFile]] = {}
        self._batches: dict[str, dict[str, FileBatch]] = {}
        for owner in folder.iterdir():
            if owner.is_dir() and _OWNER.fullmatch(owner.name):
                self._load(owner)

    def close(self) -> None:
        """Let another server have it."""
        self._lock.close()

    def files(self, owner: str) -> list[StoredFile]:
        """A key's files, oldest first."""
        return sorted(self._files.get(owner, {}).values(), key=lambda one: one.created_at)

    def file(self, owner: str, file_id: str) -> StoredFile | None:
        """One of a key's files; None where it has none of this id."""
        return self._files.get(owner, {}).get(file_id)

    def content(self, file: StoredFile) -> Path:
        """Where its bytes are."""
        return self._place(file.owner) / f"{file.id}.data"

    def room(self, owner: str) -> int:
        """Bytes that a key may still upload; 0 where it has as many files as it may."""
        held = self._files.get(owner, {}).values()
        return 0 if len(held) >= FILES_MAX else max(0, BYTES_MAX - sum(one.bytes for one in held))

    def begin_upload(self, owner: str) -> Path:
        """A new place for bytes that come in; what was cut there by a crash is removed at the next start."""
        return self._place(owner) / f"{secrets.token_hex(ID_BYTES)}.upload"

    def add(self, owner: str, arrived: Path, filename: str) -> StoredFile:
        """Keep what has arrived."""
        file = StoredFile(
            id=f"file-{secrets.token_hex(ID_BYTES)}",
            owner=owner,
            bytes=arrived.stat().st_size,
            created_at=int(time.time()),
            filename=filename,
            purpose="batch",
        )
        arrived.replace(self.content(file))
        self._save(file, self._files)
        return file

    def add_output(self, owner: str, file_id: str, written: Path, filename: str) -> None:
        """Keep what a batch has written; once, however often it is told."""
        place = self._place(owner) / f"{file_id}.data"
        if written.exists():
            written.replace(place)
        elif not place.exists():
            return
        file = StoredFile(
            id=file_id,
            owner=owner,
            bytes=place.stat().st_size,
            created_at=int(time.time()),
            filename=filename,
            purpose="batch_output",
        )
        self._save(file, self._files)

    def delete(self, file: StoredFile) -> None:
        """Forget a file: its record first, so that none is without bytes."""
        del self._files[file.owner][file.id]
        self._record(file).unlink(missing_ok=True)
        self.content(file).unlink(missing_ok=True)

    def batches(self, owner: str) -> list[FileBatch]:
        """A key's batches, oldest first."""
        return sorted(self._batches.get(owner, {}).values(), key=lambda one: one.created_at)

    def batch(self, owner: str, batch_id: str) -> FileBatch | None:
        """One of a key's batches."""
        return self._batches.get(owner, {}).get(batch_id)

    def open_batches(self) -> Iterator[FileBatch]:
        """All that have not ended, oldest first."""
        every = (one for held in self._batches.values() for one in held.values() if one.open)
        return iter(sorted(every, key=lambda one: one.created_at))

    def save(self, batch: FileBatch) -> None:
        """Keep its present state."""
        self._save(batch, self._batches)
        ended = [one for one in self.batches(batch.owner) if not one.open]
        for one in ended[: max(0, len(self._batches[batch.owner]) - BATCHES_MAX)]:
            del self._batches[one.owner][one.id]
            self._record(one).unlink(missing_ok=True)

    def keep_counts(self, batch: FileBatch) -> None:
        """How far it is: what its written answers say again after a crash, so that the disk need not."""
        self._batches[batch.owner][batch.id] = batch

    def part(self, batch: FileBatch, what: str) -> Path:
        """Where its answers (``output``) or errors (``error``) are written while it is open."""
        return self._place(batch.owner) / f"{batch.id}.{what}.part"

    def _place(self, owner: str) -> Path:
        assert _OWNER.fullmatch(owner), "a key's id"
        place = self._folder / owner
        place.mkdir(exist_ok=True, mode=0o700)
        return place

    def _record(self, record: StoredFile | FileBatch) -> Path:
        return self._place(record.owner) / f"{record.id}.json"

    def _save(self, record: R, into: dict[str, dict[str, R]]) -> None:
        path = self._record(record)
        staged = path.with_suffix(".new")
        with replacing(path, durable=True, mode=0o600, staged=staged) as file:
            file.write(msgspec.json.encode(record))
        into.setdefault(record.owner, {})[record.id] = record

    def _load(self, owner: Path) -> None:
        for path in owner.glob("*.json"):
            kind = StoredFile if path.name.startswith("file-") else FileBatch
            try:
                record = msgspec.json.decode(path.read_bytes(), type=kind)
            except (OSError, msgspec.MsgspecError) as error:
                log.error("a record is not read, and is left path=%s error=%s", path, error)  # noqa: TRY400 - the message says it all
                continue
            if record.owner != owner.name or record.id != path.stem:
                log.error("a record is not where it belongs, and not read path=%s", path)
            elif isinstance(record, StoredFile):
                self._files.setdefault(owner.name, {})[record.id] = record
            else:
                self._batches.setdefault(owner.name, {})[record.id] = record
        for path in owner.glob("*.upload"):
            path.unlink()

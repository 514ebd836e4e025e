"""Files that are read again when they have changed: one that is broken changes nothing, and is told in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from rollout.errors import SpecError

log = logging.getLogger(__name__)

T = TypeVar("T")


class FileWatch(Generic[T]):
    """A file that is read again when it is another one."""

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._stamp: tuple[int, ...] | None = None

    def changed(self) -> T | None:
        """What it holds, where that is not what it held; None else, and for what is broken."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            return self._read(self._path)
        except (SpecError, OSError) as error:
            log.error("file is not taken, what was there before holds: %s", error)  # noqa: TRY400 - the message says it all
            return None

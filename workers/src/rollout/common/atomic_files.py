"""Files that readers see whole or not at all: written beside their place, and given it at the end.

For what replaces a file. What may never replace one (a key, an object named by its content) is linked or opened
exclusively by whoever makes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

EVERYBODYS = 0o666
"""What the umask leaves of it: the mode of an ordinary new file."""


@contextmanager
def replacing(
    path: Path, *, durable: bool, mode: int = EVERYBODYS, staged: Path | None = None
) -> Iterator[BinaryIO]:
    """A new file to write, which replaces ``path`` when the block ends; after an error the old one stands.

    ``durable`` flushes file and folder to the disk: then a power cut, too, leaves the old bytes or the new. ``mode``
    holds from the first byte, less the umask. ``staged`` is where it is written, on the same file system: by default a
    hidden name beside ``path`` of this thread's own; a fixed one leaves one file at most behind killed writers, and is
    for those that hold a lock. What lies there is never written into. Raises OSError.
    """
    work = staged or path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        work.unlink(missing_ok=True)
        descriptor = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        work.replace(path)
        if durable:
            fsync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            work.unlink()
        raise


def replace_text(path: Path, text: str) -> None:
    """Replace a file's content at once. Not flushed to the disk: what must survive a power cut is an object.

    Raises OSError, and leaves nothing beside the file.
    """
    with replacing(path, durable=False) as file:
        file.write(text.encode())


def fsync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Large objects at the speed of the disk: hashed by several threads, and flushed while they are written.

Whoever writes a gigabyte and flushes it at the end waits for the disk twice over: nothing is on its way while the bytes are
copied. Small objects are hashed and written as ever. Threads are of one call, so that a process may fork between two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

LARGE_BYTES_MIN = 1 << 26
THREADS_MAX = 4
"""Of one hash: memory is read no faster by more."""
Keep = Callable[[str, Sequence[bytes | memoryview]], str]
"""Stores the parts of an object whose digest is known; returns it."""
PIECE_BYTES = 1 << 24
"""What is written between two looks at the flush that is under way."""


def name_parts(parts: Sequence[bytes | memoryview]) -> str:
    """The digest of the parts, one after the other."""
    hasher = make_hasher(sum(memoryview(part).nbytes for part in parts))
    for part in parts:
        hasher.update(part)
    return f"blake3:{hasher.hexdigest()}"


def keep_each(keep: Keep, objects: Mapping[str, Sequence[bytes | memoryview]]) -> dict[str, str]:
    """Have a store ``keep`` objects, each hashed while the one before it is written; their digests by name.

    Raises StoreError.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="hash") as pool:
        named = {name: pool.submit(name_parts, parts) for name, parts in objects.items()}
        try:
            return {name: keep(digest.result(), objects[name]) for name, digest in named.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def hash_file(path: Path) -> str:
    """The digest of a file's bytes. Raises OSError."""
    hasher = make_hasher(path.stat().st_size)
    return f"blake3:{hasher.update_mmap(path).hexdigest()}"


def make_hasher(size_bytes: int) -> blake3:
    """One for so many bytes."""
    if size_bytes < LARGE_BYTES_MIN:
        return blake3()
    return blake3(max_threads=min(THREADS_MAX, len(os.sched_getaffinity(0))))


def write_parts(
    file: BinaryIO, parts: Sequence[bytes | memoryview], *, durable: bool = True
) -> None:
    """Write the parts; of large ones with ``durable`` most is on the disk at the end. The last flush is the caller's.

    Raises OSError, also one that a flush on the way met: the kernel tells each failure once.
    """
    if not durable or sum(memoryview(part).nbytes for part in parts) < LARGE_BYTES_MIN:
        file.writelines(parts)
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="flush") as pool:
        flush: Future[None] | None = None
        for piece in _pieces(parts):
            file.write(piece)
            if flush is None or flush.done():
                _raise_failure(flush)
                file.flush()
                flush = pool.submit(os.fdatasync, file.fileno())
        _raise_failure(flush)


def _raise_failure(flush: Future[None] | None) -> None:
    if flush is not None:
        flush.result()


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        if not memoryview(part).nbytes:
            continue  # an empty tensor: such a view has no other form
        view = memoryview(part).cast("B")
        for start in range(0, view.nbytes, PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]

"""What goes between a process and a child that runs others' code: msgpack over pipes or sockets, with deadlines and bounds.

A frame is 8 bytes of length, then the body. The child may write what it likes: a frame is plain data of a known
form and never an object that comes to life when it is read.
"""

from __future__ import annotations

import os
import select
import struct
import time
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import msgspec

HEAD = struct.Struct("<Q")
FRAME_BYTES_MAX = 1 << 32
T = TypeVar("T")


def write_frame(descriptor: int, message: Any, deadline: float | None = None) -> None:
    """Write one message.

    Raises BrokenPipeError when nobody reads, TimeoutError past the deadline, TypeError, ValueError or
    RecursionError for what cannot be said.
    """
    body = msgspec.msgpack.encode(message, enc_hook=_plain)
    view = memoryview(HEAD.pack(len(body)) + body)
    while view:
        _wait(descriptor, deadline, write=True)
        view = view[os.write(descriptor, view[:65536]) :]


def read_frame(
    descriptor: int,
    kind: type[T],
    deadline: float | None = None,
    *,
    bytes_max: int = FRAME_BYTES_MAX,
) -> T:
    """Read one message.

    Raises EOFError when the writer is gone, TimeoutError past the deadline, ValueError for what is too large
    or no message of this kind.
    """
    (size,) = HEAD.unpack(_read(descriptor, HEAD.size, deadline))
    if size > bytes_max:
        raise ValueError(f"a frame of {size} bytes, expected at most {bytes_max}")
    try:
        return msgspec.msgpack.decode(
            _read(descriptor, size, deadline), type=kind, dec_hook=_unplain
        )
    except RecursionError as error:
        raise ValueError("a frame that is nested too deeply") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is neither a number nor a list or mapping of numbers")


def _unplain(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)


def _read(descriptor: int, size: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        _wait(descriptor, deadline, write=False)
        part = os.read(descriptor, min(1 << 20, size - len(parts)))
        if not part:
            raise EOFError("the other end closed the pipe")
        parts += part
    return bytes(parts)


def _wait(descriptor: int, deadline: float | None, *, write: bool) -> None:
    if deadline is None:
        return
    left = deadline - time.monotonic()
    watcher = select.poll()  # select() knows no descriptor above 1023
    watcher.register(descriptor, select.POLLOUT if write else select.POLLIN)
    if left <= 0 or not watcher.poll(left * 1000):
        raise TimeoutError

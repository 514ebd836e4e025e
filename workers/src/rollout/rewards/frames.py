"""What goes between a reward host and its child: pickled messages over pipes, with deadlines.

A frame is 8 bytes of length, then the body. Both ends are this package.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollout.types import Completion, Message, Row

HEAD = struct.Struct("<Q")
FRAME_BYTES_MAX = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One batch; the three sequences have one length."""

    prompts: Sequence[Sequence[Message]]
    completions: Sequence[Completion]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``values`` as the function returned them, or the failure and the first row that shows it alone."""

    values: Any = None
    failure: str | None = None
    row_index: int | None = None


def write_frame(descriptor: int, message: Any, deadline: float | None = None) -> None:
    """Write one message. Raises BrokenPipeError when nobody reads, TimeoutError past the deadline."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    view = memoryview(HEAD.pack(len(body)) + body)
    while view:
        _wait(descriptor, deadline, write=True)
        view = view[os.write(descriptor, view[:65536]) :]


def read_frame(descriptor: int, deadline: float | None = None) -> Any:
    """Read one message. Raises EOFError when the writer is gone, TimeoutError past the deadline."""
    (size,) = HEAD.unpack(_read(descriptor, HEAD.size, deadline))
    if size > FRAME_BYTES_MAX:
        raise EOFError(f"a frame of {size} bytes: not one of ours")
    return pickle.loads(_read(descriptor, size, deadline))  # noqa: S301 - both ends are ours


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
    watched = ([], [descriptor]) if write else ([descriptor], [])
    if left <= 0 or not any(select.select(*watched, [], left)):
        raise TimeoutError

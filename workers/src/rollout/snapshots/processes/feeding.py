"""Hands an image to CRIU while it restores, file by file as it asks: what was in memory is not written to any disk again.

CRIU's protocol of image streamers (``--stream``): it asks for a file by its name over a socket in the folder of its images, is told
whether there is one, and sends the end of a pipe that the file is written into. A file that cannot be had whole breaks off, and
so does CRIU.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Self

from rollout.errors import SnapshotRefused, StoreError
from rollout.snapshots.processes.reading import PageReading

SOCKET = "streamer-serve.sock"
LENGTH = struct.Struct("=I")
REQUEST_BYTES_MAX = 4096
NAME_TAG, IS_THERE_TAG = 0x0A, 0x08
"""Field 1 of its two messages: a text, a truth."""
PIPE_BYTES, PIPE_BYTES_WANTED = 1 << 16, 1 << 20
"""What a pipe takes without a reader, and what one of pages is made to take."""
PIECES_MAX = 512


class ImageFeed:
    """Serves the files of one image to the one CRIU that comes, while it lasts."""

    def __init__(self, folder: Path, files: Mapping[str, bytes], pages: PageReading) -> None:
        self._folder, self._files, self._pages = folder, files, pages
        self._listener = socket.socket(socket.AF_UNIX)
        self.failure: Exception | None = None
        """Why a file could not be had whole: CRIU knows only that it was not."""

    def __enter__(self) -> Self:
        descriptor = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
        try:  # the path of a socket has 107 characters
            self._listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
        finally:
            os.close(descriptor)
        self._listener.listen(1)
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
            with connection:
                self._answer_all(connection)
        except OSError:
            return  # nobody came, or CRIU has ended

    def _answer_all(self, connection: socket.socket) -> None:
        try:
            while (name := read_request(connection)) is not None:
                self._answer(connection, name)
        except StoreError as error:
            self.failure = error  # before the connection ends: who sees that looks here

    def _answer(self, connection: socket.socket, name: str) -> None:
        is_there = name in self._files or name in self._pages
        connection.sendall(LENGTH.pack(2) + bytes((IS_THERE_TAG, is_there)))
        if not is_there:
            return
        _, pipes, *_ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not pipes:
            raise StoreError(f"CRIU asked for {name[:120]}, and gave no pipe for it")
        if len(self._files.get(name, bytes(PIPE_BYTES + 1))) <= PIPE_BYTES:
            self._write(pipes[0], name)
        else:
            threading.Thread(target=self._write, args=(pipes[0], name), daemon=True).start()

    def _write(self, pipe: int, name: str) -> None:
        try:
            if name in self._files:
                write_pieces(pipe, [memoryview(self._files[name])])
                return
            with contextlib.suppress(OSError):  # a user may have too many pipes of that size
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES_WANTED)
            for batch in self._pages.batches(name):
                write_pieces(pipe, batch)
        except BrokenPipeError:
            return  # CRIU has ended, and says why
        except (OSError, RuntimeError, CancelledError, StoreError, SnapshotRefused) as error:
            self.failure = self.failure or error
        finally:
            os.close(pipe)


def read_request(connection: socket.socket) -> str | None:
    """The name of the file that is asked for; None where nothing is asked any more. Raises StoreError, OSError."""
    head = connection.recv(LENGTH.size, socket.MSG_WAITALL)
    if not head:
        return None
    size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
    body = connection.recv(size, socket.MSG_WAITALL) if 2 < size <= REQUEST_BYTES_MAX else b""
    text = body[2:] if body[:1] == bytes((NAME_TAG,)) and len(body) == size else b""
    if not text or body[1] != len(text):
        raise StoreError("CRIU asked for a file in a way that is not known: is it newer than 4.2?")
    return text.decode(errors="replace")


def write_pieces(pipe: int, pieces: Iterable[memoryview]) -> None:
    """Write all of them. Raises OSError."""
    left = [piece for piece in pieces if len(piece)]
    while left:
        written = os.writev(pipe, left[:PIECES_MAX])
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        left = left[done:]
        if written:
            left[0] = left[0][written:]

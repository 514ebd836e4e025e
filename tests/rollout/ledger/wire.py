"""A wire between a client and a server that can be cut at a chosen word of the server's."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
BEGUN = b"C\x00\x00\x00\x0aBEGIN\x00"


class Proxy:
    """Forwards to ``port``; after ``arm(word)`` the first answer that holds the word is lost, and its
    connection with it. ``fired`` is set then."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.fired = threading.Event()
        self._word: bytes | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, word: bytes) -> None:
        self.fired.clear()
        self._word = word

    def cut(self) -> None:
        """End every connection now."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _end(end)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for source, sink, judged in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._carry, args=(source, sink, judged), daemon=True
                ).start()

    def _carry(self, source: socket.socket, sink: socket.socket, judged: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if judged and self._strikes(data):
                    break
                sink.sendall(data)
        except OSError:
            pass
        _end(source)
        _end(sink)

    def _strikes(self, data: bytes) -> bool:
        with self._lock:
            if self._word is None or self._word not in data:
                return False
            self._word = None
        self.fired.set()
        return True


def _end(wire: socket.socket) -> None:
    with suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
    wire.close()

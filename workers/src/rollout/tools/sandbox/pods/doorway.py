"""The one way out of a sandbox pod that holds an agent: its episode's endpoint, at an address of its own loopback.

Read as text by ``rollout.tools.sandbox.pods.program``; never imported outside. Nothing in the pod ever has a socket of the
internet: the kernel asks process 1 about each that is wanted and about each connection (seccomp's user notification), a
socket of one machine is given instead, and one that is to go to the endpoint is put in place of it. Whatever else is
asked for is refused, so that nothing depends on a network policy. What goes through is carried by connections that the
actor made, who proved itself on each. Source: seccomp_unotify(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import select
import socket
import struct
import threading
import time
from typing import Any, Callable, Dict

RECEIVE, SEND, IS_VALID, ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
CALL, ANSWER, ADDED = "=QIIiIQ6Q", "=QqiI", "=QIIII"
"""``struct seccomp_notif``, ``seccomp_notif_resp`` and ``seccomp_notif_addfd``."""
GO_ON = 1
IN_PLACE, AND_ANSWER = 1, 2
ADDRESS_BYTES_MAX = 128
WORD = 0xFFFFFFFF
LOOPBACKS = (socket.inet_aton("127.0.0.1"),)
LOOPBACKS_6 = tuple(socket.inet_pton(socket.AF_INET6, one) for one in ("::1", "::ffff:127.0.0.1"))
LANES_MAX, JOINED_MAX = 4, 64
LANE_SECONDS = 10.0
CHUNK_BYTES = 1 << 16
TAKEN = b"\x01"


class Doorway:
    """Answers the kernel, for ever, in a thread of its own. ``numbers``: of the calls ``socket`` and ``connect``."""

    def __init__(self, listener: int, port: int, numbers: Dict[str, int]) -> None:
        self._listener, self._port, self._numbers = listener, port, numbers
        self._lanes: Any = queue.Queue(LANES_MAX)
        self._joined = threading.BoundedSemaphore(JOINED_MAX)

    def open(self, accept: Callable[[], socket.socket]) -> None:
        """Begin; ``accept`` gives the actor's connections, waited for."""
        for work in (lambda: self._gather(accept), self._answer):
            threading.Thread(target=work, daemon=True).start()

    def _gather(self, accept: Callable[[], socket.socket]) -> None:
        while True:
            try:
                lane = accept()
            except OSError:  # no descriptor is left, for the moment
                time.sleep(0.1)
                continue
            try:
                self._lanes.put_nowait(lane)
            except queue.Full:
                lane.close()

    def _answer(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            poll.poll()
            told = bytearray(struct.calcsize(CALL))
            try:
                fcntl.ioctl(self._listener, RECEIVE, told)
            except OSError:  # who asked has ended
                continue
            number, pid, _, call, _, _, first, second, third, *_ = struct.unpack(CALL, told)
            try:
                if call == self._numbers["socket"]:
                    self._give(number, second)
                else:
                    self._connect(number, pid, first & WORD, second, third & WORD)
            except OSError as error:
                self._say(number, error=error.errno or errno.EPERM)
            except (OverflowError, ValueError):  # an address that is none
                self._say(number, error=errno.EFAULT)

    def _give(self, number: int, kind: int) -> None:
        """A socket of one machine, for one of the internet."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as given:
            given.setblocking(not kind & socket.SOCK_NONBLOCK)
            closes = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
            self._add(number, given, AND_ANSWER, 0, closes)

    def _connect(self, number: int, pid: int, place: int, at: int, size: int) -> None:
        """To the endpoint, or to a socket of the pod's own; nowhere else."""
        with open("/proc/%d/mem" % pid, "rb", buffering=0) as memory:
            memory.seek(at)
            address = memory.read(min(size, ADDRESS_BYTES_MAX))
        fcntl.ioctl(
            self._listener, IS_VALID, struct.pack("=Q", number)
        )  # else of another process by now
        if len(address) < 2:
            self._say(number, error=errno.EINVAL)
        elif struct.unpack("=H", address[:2])[0] not in (socket.AF_INET, socket.AF_INET6):
            # no socket of the internet is there that another address, written now, could lead out
            self._say(number, flags=GO_ON)
        elif self._is_endpoint(address):
            self._join(number, pid, place)
        else:
            self._say(number, error=errno.ECONNREFUSED)

    def _is_endpoint(self, address: bytes) -> bool:
        port = int.from_bytes(address[2:4], "big")
        host, known = address[4:8], LOOPBACKS
        if struct.unpack("=H", address[:2])[0] == socket.AF_INET6:
            host, known = address[8:24], LOOPBACKS_6
        return port == self._port and host in known

    def _join(self, number: int, pid: int, place: int) -> None:
        """Put a socket that leads to the endpoint in place of the one that was to be connected."""
        if not self._joined.acquire(blocking=False):
            raise OSError(errno.ECONNREFUSED, "too many connections")
        ours, theirs = socket.socketpair()
        try:
            flags = flags_of(pid, place)
            lane = self._lane()
            theirs.setblocking(not flags & os.O_NONBLOCK)
            self._add(number, theirs, IN_PLACE, place, flags & os.O_CLOEXEC)
        except BaseException:
            ours.close()
            self._joined.release()
            raise
        finally:
            theirs.close()
        self._say(number)
        carry(ours, lane, self._joined.release)

    def _lane(self) -> socket.socket:
        """A connection of the actor's that is alive. Raises OSError."""
        while True:
            try:
                lane = self._lanes.get(timeout=LANE_SECONDS)
            except queue.Empty:
                raise OSError(errno.ETIMEDOUT, "nobody answers")
            try:
                lane.sendall(TAKEN)
            except OSError:
                lane.close()
            else:
                return lane

    def _add(self, number: int, one: socket.socket, flags: int, place: int, closes: int) -> None:
        fcntl.ioctl(
            self._listener,
            ADD_DESCRIPTOR,
            bytearray(struct.pack(ADDED, number, flags, one.fileno(), place, closes)),
        )

    def _say(self, number: int, *, error: int = 0, flags: int = 0) -> None:
        try:
            fcntl.ioctl(
                self._listener, SEND, bytearray(struct.pack(ANSWER, number, 0, -error, flags))
            )
        except OSError:  # who asked has ended
            pass


def flags_of(pid: int, place: int) -> int:
    """Of a process's descriptor. Raises OSError where it has none there."""
    with open("/proc/%d/fdinfo/%d" % (pid, place)) as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    raise OSError(errno.EBADF, "no descriptor")


def carry(one: socket.socket, other: socket.socket, done: Callable[[], None]) -> None:
    """Everything that is said on either, to the other, until both have ended; then ``done``."""
    left = [2]
    lock = threading.Lock()

    def end() -> None:
        with lock:
            left[0] -= 1
            last = not left[0]
        if last:
            one.close()
            other.close()
            done()

    pour(one, other, end)
    pour(other, one, end)


def pour(source: socket.socket, to: socket.socket, done: Callable[[], None]) -> None:
    """Everything that is said on one, to another, in a thread of its own; then ``done``."""

    def copy() -> None:
        try:
            while True:
                data = source.recv(CHUNK_BYTES)
                if not data:
                    to.shutdown(socket.SHUT_WR)
                    break
                to.sendall(data)
        except OSError:
            for end in (source, to):
                hang_up(end)
        done()

    threading.Thread(target=copy, daemon=True).start()


def hang_up(end: socket.socket) -> None:
    """Whoever waits on it hears that it is over."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass

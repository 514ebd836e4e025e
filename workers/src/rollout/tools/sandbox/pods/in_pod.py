"""Process 1 of a sandbox pod: lets one caller in, closes what is open, and then does what process 1 of a sandbox does.

Read as text by ``rollout.tools.sandbox.pods.program``, beside the programs whose functions it takes; never imported
outside. Standard library alone (Python 3.9 or newer), so that any image with a Python will do. It refuses to start in a
pod that is less closed than it should be. Single use: the pod ends with its first connection. Further ones of the same
caller are what an agent's requests travel on, or what a server says and hears.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import os
import platform
import select
import socket
import sys
import threading
from typing import Callable

import doorway  # pyrefly: ignore[missing-import] - these are found in the sandbox only
import hosting  # pyrefly: ignore[missing-import]
import inside  # pyrefly: ignore[missing-import]
import serving  # pyrefly: ignore[missing-import]

HANDSHAKE_SECONDS = 5.0
LAST_WORDS_SECONDS = 2.0
NONCE_BYTES = 32
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER_MODE = 38, 22, 2
SET_MODE_FILTER, NEW_LISTENER = 1, 8
TOKENS = "/var/run/secrets/kubernetes.io"
EVERYBODY = 4294967295
WELCOME = b"\x01"


class Filter(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def main() -> None:
    """Serve one caller, whose word is the run's."""
    ctypes.CDLL(None).prctl(inside.PR_SET_DUMPABLE, 0, 0, 0, 0)
    given = {name: os.environ.pop("ROLLOUT_SANDBOX_" + name, "") for name in NEEDED}
    why = unfit(given)
    if why:
        sys.exit("this pod is no sandbox: " + why)
    door = listen(int(given["PORT"]))
    secret, digest = bytes.fromhex(given["SECRET"]), bytes.fromhex(given["DIGEST"])
    caller = admit(door, secret, digest)
    for place in (0, 1):
        os.dup2(caller.fileno(), place)
    caller.close()
    inside.ENVIRONMENT["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    limits = inside.read_frame()
    inside.be_first()
    if "door" in limits:
        host(limits, lambda: admit(door, secret, digest))
    if "server" in limits:
        serve(limits, lambda: admit(door, secret, digest))
    door.close()
    close_calls(limits["filters"])
    inside.serve_commands(limits)


def serve(limits: inside.Frame, accept: Callable[[], socket.socket]) -> None:
    """Hold a server, which has two connections for itself: one that it hears and speaks on, one for people. Never returns."""
    given = limits["server"]
    inside.write_frame({"ready": True})
    lanes = (accept(), accept())
    close_calls(limits["filters"])
    serving.put(given["files"])
    ours, theirs = zip(socket.socketpair(), socket.socketpair())
    pid = os.fork()
    if pid == 0:
        inside.become(given, limits, (theirs[0].fileno(), theirs[0].fileno(), theirs[1].fileno()))
    for one in theirs:
        one.close()
    silent = (threading.Event(), threading.Event())
    doorway.pour(lanes[0], ours[0], lambda: None)
    for source, lane, event in zip(ours, lanes, silent):
        doorway.pour(source, lane, event.set)
    code = serving.await_end(pid, limits, listen_for)
    inside.end_everything()
    for event in silent:
        event.wait(LAST_WORDS_SECONDS)
    inside.write_frame({"ended": code})
    os._exit(0)


def listen_for(seconds: float) -> None:
    """Whether the caller is there still; ends this process where that is not."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if poll.poll(seconds * 1000):
        inside.read_frame()


def host(limits: inside.Frame, accept: Callable[[], socket.socket]) -> None:
    """Hold an agent, whose one way out is its episode's endpoint. Never returns."""
    given = limits["door"]
    listener = close_calls(limits["filters"], asks=given["seccomp"][platform.machine()])
    doorway.Doorway(listener, given["port"], given["numbers"][platform.machine()]).open(accept)
    for name, mount in given["mounts"].items():
        if os.path.ismount(mount):
            hosting.MOUNTS[name] = mount
            inside.WRITABLE += (mount,)
    hosting.serve_all(limits)


NEEDED = ("SECRET", "DIGEST", "PORT", "USERNS")


def unfit(given: dict[str, str]) -> str:
    """Why nothing may run here; empty where it may."""
    if os.getpid() != 1:
        return "its program is not process 1"
    if os.geteuid() == 0:
        return "it runs as root"
    if os.path.exists(TOKENS):
        return "it has a service account's token"
    if given["USERNS"] == "true" and not in_user_namespace():
        return "its node ignored hostUsers: false"
    return ""


def in_user_namespace() -> bool:
    """Whether users in here are others outside."""
    with open("/proc/self/uid_map") as file:
        first, outside, number = map(int, file.readline().split())
    return (first, outside, number) != (0, 0, EVERYBODY)


def listen(port: int) -> socket.socket:
    """Where the one caller comes."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=8)


def admit(door: socket.socket, secret: bytes, digest: bytes) -> socket.socket:
    """The first caller that knows the key; others are sent away."""
    while True:
        caller, _ = door.accept()
        caller.settimeout(HANDSHAKE_SECONDS)
        try:
            if greet(caller, secret, digest):
                return keep(caller)
        except OSError:
            pass
        caller.close()


def keep(caller: socket.socket) -> socket.socket:
    """The connection as it stays: one whose other end is gone without a word is noticed."""
    caller.settimeout(None)
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 30),
        (socket.TCP_KEEPINTVL, 10),
        (socket.TCP_KEEPCNT, 3),
    ):
        caller.setsockopt(socket.IPPROTO_TCP, option, value)
    return caller


def greet(caller: socket.socket, secret: bytes, digest: bytes) -> bool:
    """Say who this is, and hear who that is: each proves what only the run's broker gave it."""
    nonce = receive(caller, NONCE_BYTES)
    caller.sendall(hmac.new(secret, b"pod" + nonce, hashlib.sha256).digest())
    key = receive(caller, NONCE_BYTES)
    if not hmac.compare_digest(hashlib.sha256(key).digest(), digest):
        return False
    caller.sendall(WELCOME)
    return True


def receive(caller: socket.socket, size: int) -> bytes:
    """So many bytes. Raises OSError."""
    data = b""
    while len(data) < size:
        more = caller.recv(size - len(data))
        if not more:
            raise ConnectionError("hung up")
        data += more
    return data


def close_calls(filters: dict[str, str], asks: int = 0) -> int:
    """The filter of system calls, for this process and all that it starts; nothing runs without it.

    ``asks``: the number of ``seccomp``, for a filter that asks this process; the descriptor that it is asked on.
    """
    steps = base64.b64decode(filters[platform.machine()])
    libc = ctypes.CDLL(None, use_errno=True)
    program = Filter(len(steps) // 8, steps)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        os._exit(1)
    if asks:
        listener = libc.syscall(asks, SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(program))
        if listener < 0:
            inside.write_frame({"ready": False, "why": "its kernel asks nobody about sockets"})
            os._exit(1)
        return listener
    if libc.prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(program), 0, 0):
        os._exit(1)
    return -1

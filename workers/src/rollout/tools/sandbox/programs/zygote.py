"""Process 1 of a bubblewrap that holds no policy: forks process 1 of one sandbox after the other, so that none starts a Python.

Read as text by ``rollout.tools.sandbox.bubblewrap`` and run there, beside ``inside.py`` whose functions it takes; never
imported outside. Each child is made in namespaces of its own (user, mount, process, network, IPC, name, cgroup), below those
of this bubblewrap: what it could break out of ends here, with no network, and with nothing that can be written. It gives up
every right and installs the filter of system calls before it hears of a command. Who holds the other end of the control
socket is who this lives for.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import gc
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
from functools import lru_cache
from typing import Any, Tuple

sys.path.insert(0, "/run")
import inside  # pyrefly: ignore[missing-import] - found in the sandbox only

REQUEST_BYTES_MAX = 1 << 16
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
NEW_NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (sched.h)."""
CLONE_NEWNS = 0x00020000
MACHINE = os.uname().machine
SYS_CLONE, SYS_CAPSET = ({"x86_64": (56, 126), "aarch64": (220, 91)})[MACHINE]
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = (
    1,
    22,
    24,
    38,
    47,
)
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES_MAX = 64
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
LOOPBACK_UP = struct.pack("16sh22x", b"lo", IFF_UP)
"""``struct ifreq``. What of a device's flags cannot be set stays."""
TERMINALS = "newinstance,ptmxmode=0666,mode=620"
NOBODY = 65534
SHARED_MEMORY_BYTES = 16 << 20
SPAWNING_BYTES_MIN = 128 << 20
"""Memory of a sandbox with which its process 1 fits into the bounds of its commands."""
COUNTS_APART = tuple(map(int, re.findall("[0-9]+", os.uname().release)[:2])) >= (5, 14)
"""Whether the kernel counts a user's processes in each user namespace by itself."""

libc = inside.libc
forking = ctypes.PyDLL(None, use_errno=True)
"""The same with Python's lock held: what is forked has it."""
CAPSET = (ctypes.c_long(SYS_CAPSET), struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24))
CLONE = [ctypes.c_long(SYS_CLONE), ctypes.c_long(NEW_NAMESPACES | CLONE_NEWNS | signal.SIGCHLD)]
Mount = Tuple[str, Tuple[Any, ...]]
"""Where, and the arguments of the call. What can be made before a fork is: each page that is written behind it is copied."""


class SandboxFilter(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def main() -> None:
    """One sandbox a message, until the socket closes. What ends is buried by the kernel."""
    control = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.disable()  # what is forked writes to no page that it need not
    gc.freeze()
    steps = base64.b64decode(json.loads(control.recv(REQUEST_BYTES_MAX))["filter"])
    program = SandboxFilter(len(steps) // 8, steps)
    while True:
        said, given, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 1)
        if not said:
            os._exit(0)
        for descriptor in given:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor) as channel:
                fork(channel, *asked(said), program)


@lru_cache(maxsize=8)
def asked(said: bytes) -> tuple[inside.Frame, list[Mount]]:
    """The limits of a sandbox, and its mounts."""
    limits = json.loads(said)
    return limits, mounts_of(limits["disk_bytes"])


def fork(
    channel: socket.socket, limits: inside.Frame, mounts: list[Mount], program: SandboxFilter
) -> None:
    """Make process 1 of a sandbox; ``channel`` is its own from now on."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = forking.syscall(*CLONE, None, None, None, None)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        be_sandbox(channel, limits, mounts, program)
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        error = OSError(number, os.strerror(number), "clone")
        tell_failure(channel.fileno(), error, b"-")


def be_sandbox(
    channel: socket.socket, limits: inside.Frame, mounts: list[Mount], program: SandboxFilter
) -> None:
    """The child's side: its own descriptor is handed out first. Never returns."""
    try:
        own = struct.pack("i", os.pidfd_open(os.getpid()))
        channel.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, own)])
        for place in (0, 1):
            os.dup2(channel.fileno(), place)
        os.closerange(3, 4096)
        try:
            enter(mounts)
            give_up(program)
        except OSError as error:
            tell_failure(1, error)
            os._exit(1)
        inside.be_first()
        inside.serve_commands(limits, hold(limits))
    finally:
        os._exit(1)


def hold(limits: inside.Frame) -> inside.Starter:
    """How commands are begun here. This process takes their bounds for good where it can, so that they need no fork of it."""
    if not COUNTS_APART or limits["memory_bytes"] < SPAWNING_BYTES_MIN:
        return inside.fork
    itself_and_one = max(2, limits["processes"])
    inside.set_bounds(inside.bounds_of({**limits, "processes": itself_and_one}))
    return spawn


def spawn(request: inside.Frame, limits: inside.Frame, streams: inside.Streams) -> int:
    """The command without a copy of this process's memory, which costs more than a small command does; its process."""
    try:
        pid = os.posix_spawn(
            request["argv"][0],
            request["argv"],
            {**inside.ENVIRONMENT, **request.get("environment", {})},
            file_actions=[(os.POSIX_SPAWN_DUP2, one, place) for place, one in enumerate(streams)],
            setsid=True,
            setsigdef=inside.DEFAULT_SIGNALS,
        )
    except (OSError, ValueError):
        return inside.fork(request, limits, streams)  # and the command says what is wrong with it
    os.setpriority(os.PRIO_PROCESS, pid, inside.NICENESS)
    seconds = inside.processor_seconds(request)
    resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))
    return pid


def tell_failure(channel: int, error: OSError, before: bytes = b"") -> None:
    """Say why there is no sandbox, as ``inside.write_frame`` would."""
    data = json.dumps({"ready": False, "why": str(error)}).encode()
    os.write(channel, before + len(data).to_bytes(4, "big") + data)


def enter(mounts: list[Mount]) -> None:
    """Be somebody in the new namespaces, with folders, processes and a loopback device that are nobody else's."""
    libc.signal(signal.SIGCHLD, None)
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    os.setsid()
    write("/proc/self/oom_score_adj", b"1000")  # where no memory is left, this goes first
    write("/proc/self/setgroups", b"deny")
    for name in ("uid_map", "gid_map"):
        write("/proc/self/" + name, b"%d %d 1" % (NOBODY, NOBODY))
    socket.sethostname("box")
    bring_loopback_up()
    for one in mounts:
        mount(one)
    write("/proc/sys/user/max_user_namespaces", b"0")
    mount(READ_ONLY)
    os.chdir("/box")


def bring_loopback_up() -> None:
    """The only device that there is."""
    one = libc.socket(socket.AF_INET, socket.SOCK_DGRAM, 0)
    check(one, "socket")
    fcntl.ioctl(one, SIOCSIFFLAGS, LOOPBACK_UP)
    os.close(one)


def give_up(program: SandboxFilter) -> None:
    """No right is left, none can be had again, and the filter holds."""
    prctl = libc.prctl
    for number in range(CAPABILITIES_MAX):
        if prctl(PR_CAPBSET_DROP, number, 0, 0, 0):
            break  # the kernel has no more of them
    check(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl")
    check(libc.syscall(*CAPSET), "capset")
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def mounts_of(disk_bytes: int) -> list[Mount]:
    """What is mounted anew in a sandbox, in order."""
    small = min(SHARED_MEMORY_BYTES, disk_bytes)
    folders = (("/dev/shm", small), ("/tmp", disk_bytes), ("/box", disk_bytes))
    kept = MS_NOSUID | MS_NODEV
    return [
        prepared(None, "/", None, MS_REC | MS_PRIVATE),
        *(
            prepared("tmpfs", one, "tmpfs", kept, "mode=0755,size=%d" % size)
            for one, size in folders
        ),
        prepared("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, TERMINALS),
        prepared("proc", "/proc", "proc", kept | MS_NOEXEC),
    ]


def prepared(
    source: str | None, target: str, kind: str | None, flags: int, data: str = ""
) -> Mount:
    """As mount(2) takes it."""
    texts = [one.encode() if one is not None else None for one in (source, target, kind)]
    return target, (*texts, ctypes.c_ulong(flags), data.encode() or None)


READ_ONLY = prepared(
    None, "/proc", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
)


def mount(one: Mount) -> None:
    """Mount it. Raises OSError."""
    target, arguments = one
    check(libc.mount(*arguments), "mount " + target)


def check(done: int, what: str) -> None:
    """Raise OSError for what failed."""
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def write(path: str, text: bytes) -> None:
    """A file of the kernel's; without Python's own files, which cost more than all of them."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text)
    finally:
        os.close(file)


if __name__ == "__main__":
    main()

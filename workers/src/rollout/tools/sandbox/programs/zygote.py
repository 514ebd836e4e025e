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

sys.path.insert(0, "/run")
import inside  # pyrefly: ignore[missing-import] - found in the sandbox only

REQUEST_BYTES_MAX = 1 << 16
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
NEW_NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (sched.h)."""
CLONE_NEWNS = 0x00020000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
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
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
NOBODY = 65534
SHARED_MEMORY_BYTES = 16 << 20
SPAWNING_BYTES_MIN = 128 << 20
"""Memory of a sandbox with which its process 1 fits into the bounds of its commands."""
COUNTS_APART = tuple(map(int, re.findall("[0-9]+", os.uname().release)[:2])) >= (5, 14)
"""Whether the kernel counts a user's processes in each user namespace by itself."""

libc = ctypes.CDLL(None, use_errno=True)
forking = ctypes.PyDLL(None, use_errno=True)
"""The same with Python's lock held: what is forked has it."""


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
    filter_steps = base64.b64decode(json.loads(control.recv(REQUEST_BYTES_MAX))["filter"])
    while True:
        said, given, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 1)
        if not said:
            os._exit(0)
        for descriptor in given:
            fork(descriptor, json.loads(said), filter_steps)
            os.close(descriptor)


def fork(channel: int, limits: inside.Frame, filter_steps: bytes) -> None:
    """Make process 1 of a sandbox; ``channel`` is its own from now on."""
    flags = NEW_NAMESPACES | CLONE_NEWNS | signal.SIGCHLD
    ctypes.pythonapi.PyOS_BeforeFork()
    arguments = [ctypes.c_long(SYS_CLONE[os.uname().machine]), ctypes.c_long(flags)]
    pid = forking.syscall(*arguments, None, None, None, None)
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        be_sandbox(channel, limits, filter_steps)
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        tell_failure(channel, OSError(number, os.strerror(number), "clone"), b"-")


def be_sandbox(channel: int, limits: inside.Frame, filter_steps: bytes) -> None:
    """The child's side: its own descriptor is handed out first. Never returns."""
    try:
        with socket.socket(fileno=os.dup(channel)) as out:
            socket.send_fds(out, [b"+"], [os.pidfd_open(os.getpid())])
        for place in (0, 1):
            os.dup2(channel, place)
        os.closerange(3, 4096)
        try:
            enter(limits["disk_bytes"])
            give_up(filter_steps)
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


def enter(disk_bytes: int) -> None:
    """Be somebody in the new namespaces, with folders, processes and a loopback device that are nobody else's."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    os.setsid()
    write("/proc/self/oom_score_adj", "1000")  # where no memory is left, this goes first
    write("/proc/self/setgroups", "deny")
    for name in ("uid_map", "gid_map"):
        write("/proc/self/" + name, "%d %d 1" % (NOBODY, NOBODY))
    socket.sethostname("box")
    bring_loopback_up()
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    small = min(SHARED_MEMORY_BYTES, disk_bytes)
    for folder, size in (("/dev/shm", small), ("/tmp", disk_bytes), ("/box", disk_bytes)):
        mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=%d" % size)
    terminals = "newinstance,ptmxmode=0666,mode=620"
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, terminals)
    own = MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("proc", "/proc", "proc", own)
    write("/proc/sys/user/max_user_namespaces", "0")
    mount(None, "/proc", None, MS_REMOUNT | MS_BIND | MS_RDONLY | own)
    os.chdir("/box")


def bring_loopback_up() -> None:
    """The only device that there is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        asked = struct.pack("16sh22x", b"lo", 0)
        told = fcntl.ioctl(one, SIOCGIFFLAGS, asked)
        (flags,) = struct.unpack_from("h", told, 16)
        fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


def give_up(filter_steps: bytes) -> None:
    """No right is left, none can be had again, and the filter holds."""
    for number in range(CAPABILITIES_MAX):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0):
            break  # the kernel has no more of them
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl")
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    number = ctypes.c_long(SYS_CAPSET[os.uname().machine])
    check(libc.syscall(number, header, bytes(24)), "capset")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    program = SandboxFilter(len(filter_steps) // 8, filter_steps)
    done = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    check(done, "seccomp")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount it. Raises OSError."""
    texts = [one.encode() if one is not None else None for one in (source, target, kind)]
    done = libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None)
    check(done, "mount " + target)


def check(done: int, what: str) -> None:
    """Raise OSError for what failed."""
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def write(path: str, text: str) -> None:
    """A file of the kernel's; without Python's own files, which cost more than all of them."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    main()

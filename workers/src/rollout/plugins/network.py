"""Takes the network from a process and all that it starts: a seccomp filter, which nothing takes off again.

What is left is AF_UNIX. A socket of another family is refused, and with it everything that would make one in a
roundabout way: io_uring, the 32-bit and x32 calls of the same kernel, and another process's descriptors or memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from dataclasses import dataclass

from rollout.errors import SpecError

PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, ALL_THREADS = 1, 1
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
"""Instructions of classic BPF: load a word, compare, return."""
KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
CALL_NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Where they stand in ``struct seccomp_data``; the low half of an argument comes first on these machines."""
X32_CALLS = 0x40000000
IO_URING = (425, 426, 427)
PIDFD_GETFD = 438


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCalls:
    """The numbers of system calls on one kind of machine. ``audit`` is its AUDIT_ARCH."""

    audit: int
    socket: int
    seccomp: int
    of_others: tuple[int, ...]
    """ptrace, process_vm_readv, process_vm_writev."""


MACHINES = {
    "x86_64": SystemCalls(audit=0xC000003E, socket=41, seccomp=317, of_others=(101, 310, 311)),
    "aarch64": SystemCalls(audit=0xC00000B7, socket=198, seccomp=277, of_others=(117, 270, 271)),
}


def close_network() -> None:
    """Close it for every thread of this process, for good. Raises SpecError where that cannot be done."""
    machine = MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        raise _cannot(f"{sys.platform} on {platform.machine()} is not known")
    code = build_filter(machine)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held := _hold(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_char_p)
    if libc.syscall(machine.seccomp, SET_MODE_FILTER, ALL_THREADS, program) != 0:
        raise _cannot(os.strerror(ctypes.get_errno()))
    del held
    if not is_closed():
        raise _cannot("the kernel took the filter and lets sockets be made")


def is_closed() -> bool:
    """Whether this process can make no socket of the internet."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    except PermissionError:
        return True
    return False


def build_filter(machine: SystemCalls) -> bytes:
    """The program: eight bytes an instruction."""
    refused = (*IO_URING, PIDFD_GETFD, *machine.of_others)
    forbid = _return(ERRNO | errno.EACCES)
    parts = [
        _step(LOAD, ARCHITECTURE),
        _step(JUMP_IF_EQUAL, machine.audit, yes=1),
        _return(KILL_PROCESS),
        _step(LOAD, CALL_NUMBER),
        _step(JUMP_IF_AT_LEAST, X32_CALLS, no=1),
        _return(KILL_PROCESS),
    ]
    for number in refused:
        parts += [_step(JUMP_IF_EQUAL, number, no=1), forbid]
    parts += [
        _step(JUMP_IF_EQUAL, machine.socket, yes=1),
        _return(ALLOW),
        _step(LOAD, FIRST_ARGUMENT),
        _step(JUMP_IF_EQUAL, int(socket.AF_UNIX), yes=1),
        forbid,
        _return(ALLOW),
    ]
    return b"".join(parts)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _return(value: int) -> bytes:
    return _step(RETURN, value)


def _hold(code: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(code, len(code))


def _cannot(why: str) -> SpecError:
    return SpecError(
        f"data code shall have no network, and this machine cannot take it away: {why}; use nodes whose"
        " kernel has seccomp filters, or let the platform set the runtime's spec.allowed.dataCodeNetwork"
    )

"""Takes io_uring from a process and all that it starts: its rings are in the kernel, and no image can hold them."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from rollout.tools.sandbox.seccomp import (
    ALLOW,
    ARCHITECTURE,
    CALL_NUMBER,
    ERRNO,
    JUMP_IF_EQUAL,
    LOAD,
    RETURN,
    machine_calls,
)

IO_URING = (425, 426, 427)
"""io_uring_setup, _enter, _register: of one number on every machine."""
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER_MODE = 38, 22, 2
ABSENT = ERRNO | errno.ENOSYS
"""As a kernel without it says: whoever has another way takes it."""


def build_denial(audit: int) -> bytes:
    """The filter: eight bytes an instruction. Calls of another architecture (32-bit ones) have no io_uring, either."""
    steps = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_IF_EQUAL, 1, 0, audit), (RETURN, 0, 0, ABSENT)]
    steps.append((LOAD, 0, 0, CALL_NUMBER))
    for number in IO_URING:
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ABSENT)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def deny_io_uring() -> None:
    """For good, for this process and its children. Raises OSError where the kernel has no such filters."""
    code = build_denial(machine_calls().audit)
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, FILTER_MODE, program, 0, 0):
        raise OSError(ctypes.get_errno(), f"io_uring: {os.strerror(ctypes.get_errno())}")

"""The filter of system calls that holds in a sandbox: classic BPF, as ``bwrap --seccomp`` takes it.

Namespaces cannot be made or entered, nothing is mounted, no other process is looked into, and of sockets there are
those of one machine and of the internet (which has no route there). Everything else is left to the kernel.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
import sys
from collections.abc import Mapping, Sequence

from rollout.tools.sandbox.contract import NoSandbox
from rollout.tools.sandbox.system_calls import (
    ASKED,
    INSPECTED,
    MACHINE_CALLS,
    MISSING,
    MachineCalls,
)

LOAD, AND, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_SET, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
"""Instructions of classic BPF: load a word, mask it, compare, return."""
KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
ASK = 0x7FC00000
"""SECCOMP_RET_USER_NOTIF: whoever put the filter in force answers."""
DONE = ERRNO
"""Answered with 0, and not done."""
CALL_NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
"""Where they stand in ``struct seccomp_data``; the low half of an argument comes first on these machines."""
X32_CALLS = 0x40000000
NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME (sched.h)."""
FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
INTERNET_LEVELS = (0, 6, 41)
"""IPPROTO_IP, IPPROTO_TCP, IPPROTO_IPV6: whose options a socket of one machine does not have."""
SOCKET_TYPES = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into somebody's terminal."""

Range = tuple[int, int, int]
"""Calls of one answer: the first, the one behind the last, and what is answered."""

REFUSE = ERRNO | errno.EPERM
ABSENT = ERRNO | errno.ENOSYS


def machine_calls() -> MachineCalls:
    """Those of this machine. Raises NoSandbox where they are not known."""
    found = MACHINE_CALLS.get(platform.machine())
    if sys.platform != "linux" or found is None:
        known = " and ".join(sorted(MACHINE_CALLS))
        raise NoSandbox(
            f"NoSandbox: tools that run what the policy writes need Linux on {known}; this is"
            f" {sys.platform} on {platform.machine()}. Leave them out of environment.tools, or run on such a machine"
        )
    return found


def build_filter(
    machine: MachineCalls, families: tuple[int, ...] = FAMILIES, *, asks: bool = False
) -> bytes:
    """The program: eight bytes an instruction. ``families`` of sockets may be made, and no others.

    ``asks``: about streams of the internet, and about every connection, whoever put the filter in force is asked.
    """
    numbers = machine.numbers
    parts = [
        _step(LOAD, ARCHITECTURE),
        _step(JUMP_IF_EQUAL, machine.audit, yes=1),
        _return(KILL_PROCESS),
        _step(LOAD, CALL_NUMBER),
    ]
    if machine.has_x32:
        parts += [_step(JUMP_IF_AT_LEAST, X32_CALLS, no=1), _return(KILL_PROCESS)]
    parts += _when(numbers["clone"], _refuse_bits(FIRST_ARGUMENT, NEW_NAMESPACES))
    parts += _when(numbers["ioctl"], _refuse_values(SECOND_ARGUMENT, TERMINAL_INPUT))
    of_sockets = _allow_values(FIRST_ARGUMENT, families)
    parts += _when(numbers["socketpair"], of_sockets)
    if asks:
        parts += _when(numbers["connect"], [_return(ASK)])
        parts += _when(numbers["setsockopt"], _answer_values(SECOND_ARGUMENT, INTERNET_LEVELS))
        parts += _ask_for_streams(numbers["socket"])
    kinds = [_step(LOAD, SECOND_ARGUMENT), _step(AND, 0xF), *_allow_loaded(SOCKET_TYPES)]
    parts += _when(numbers["socket"], [*_continue_for(FIRST_ARGUMENT, families), *kinds])
    refused = {
        numbers[name]: ABSENT if name in MISSING else REFUSE
        for name in numbers.keys() - INSPECTED - ASKED
    }
    return b"".join([*parts, *_find_among(_ranges(refused))])


def _ranges(answers: Mapping[int, int]) -> list[Range]:
    """The same, in order, with neighbours that are answered alike put together."""
    found: list[Range] = []
    for number in sorted(answers):
        first, behind, answer = found[-1] if found else (number, -1, 0)
        if (behind, answer) == (number, answers[number]):
            found[-1] = (first, number + 1, answer)
        else:
            found.append((number, number + 1, answers[number]))
    return found


def _find_among(ranges: Sequence[Range]) -> list[bytes]:
    """The answer of the range that holds the call, found by halves; calls of no range are allowed.

    The kernel runs a filter for each call that there is when it is put in force, so that its longest way counts.
    """
    if len(ranges) == 1:
        first, behind, answer = ranges[0]
        below = [_step(JUMP_IF_AT_LEAST, first, no=2), _step(JUMP_IF_AT_LEAST, behind, yes=1)]
        return [*below, _return(answer), _return(ALLOW)]
    half = len(ranges) // 2
    left, right = _find_among(ranges[:half]), _find_among(ranges[half:])
    return [_step(JUMP_IF_AT_LEAST, ranges[half][0], yes=len(left)), *left, *right]


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """``body`` for one call; it must return in every case. The call's number stays loaded for the others."""
    return [_step(JUMP_IF_EQUAL, number, no=len(body)), *body]


def _refuse_bits(argument: int, bits: int) -> list[bytes]:
    return [_step(LOAD, argument), _step(JUMP_IF_SET, bits, no=1), _return(REFUSE), _return(ALLOW)]


def _refuse_values(argument: int, values: tuple[int, ...]) -> list[bytes]:
    steps = [_step(LOAD, argument)]
    for value in values:
        steps += [_step(JUMP_IF_EQUAL, value, no=1), _return(REFUSE)]
    return [*steps, _return(ALLOW)]


def _answer_values(argument: int, values: tuple[int, ...]) -> list[bytes]:
    steps = [_step(LOAD, argument)]
    for value in values:
        steps += [_step(JUMP_IF_EQUAL, value, no=1), _return(DONE)]
    return [*steps, _return(ALLOW)]


def _ask_for_streams(number: int) -> list[bytes]:
    """Where a stream of the internet is wanted; every other socket is left to what follows."""
    body = [
        _step(LOAD, FIRST_ARGUMENT),
        _step(JUMP_IF_EQUAL, socket.AF_INET, yes=1),
        _step(JUMP_IF_EQUAL, socket.AF_INET6, no=4),
        _step(LOAD, SECOND_ARGUMENT),
        _step(AND, 0xF),
        _step(JUMP_IF_EQUAL, socket.SOCK_STREAM, no=1),
        _return(ASK),
        _step(LOAD, CALL_NUMBER),
    ]
    return [_step(JUMP_IF_EQUAL, number, no=len(body)), *body]


def _allow_values(argument: int, values: tuple[int, ...]) -> list[bytes]:
    return [_step(LOAD, argument), *_allow_loaded(values)]


def _allow_loaded(values: tuple[int, ...]) -> list[bytes]:
    steps = [
        step for value in values for step in (_step(JUMP_IF_EQUAL, value, no=1), _return(ALLOW))
    ]
    return [*steps, _return(REFUSE)]


def _continue_for(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Go on behind this where the argument is one of ``values``; refuse every other."""
    last = len(values)
    steps = [_step(JUMP_IF_EQUAL, value, yes=last - place) for place, value in enumerate(values)]
    return [_step(LOAD, argument), *steps, _return(REFUSE)]


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _return(value: int) -> bytes:
    return _step(RETURN, value)

"""The filter of system calls, run by an interpreter of its instructions, for both kinds of machine."""

from __future__ import annotations

import errno
import struct

import pytest

from rollout.tools.sandbox.seccomp import build_filter
from rollout.tools.sandbox.system_calls import INSPECTED, MACHINE_CALLS

ALLOWED, KILLED = "allowed", "killed"


def judge(machine, number: int, *arguments: int, audit: int | None = None) -> str:
    """What the kernel would do: classic BPF over ``struct seccomp_data`` (linux/seccomp.h)."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, machine.audit if audit is None else audit, 0, *words)
    code = build_filter(machine)
    steps = [struct.unpack_from("=HBBI", code, place) for place in range(0, len(code), 8)]
    place, loaded = 0, 0
    while True:
        kind, yes, no, value = steps[place]
        place += 1
        if kind == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif kind == 0x54:
            loaded &= value
        elif kind == 0x06:
            action = value & 0xFFFF0000
            if action == 0x50000:
                return errno.errorcode[value & 0xFFFF]
            return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}[action]
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[kind]
            place += yes if holds else no


MACHINES = pytest.mark.parametrize("machine", MACHINE_CALLS.values(), ids=MACHINE_CALLS)


@MACHINES
def test_calls_that_are_named_are_refused_and_the_others_are_not(machine):
    refused = {number: name for name, number in machine.numbers.items() if name not in INSPECTED}
    for number in range(470):
        said = judge(machine, number, 1, 1)
        if number in refused:
            wanted = "ENOSYS" if refused[number] in {"clone3", "memfd_create"} else "EPERM"
            assert said == wanted, refused[number]
        elif number not in machine.numbers.values():
            assert said == ALLOWED, number


@MACHINES
def test_a_process_is_made_and_a_namespace_is_not(machine):
    clone = machine.numbers["clone"]
    assert judge(machine, clone, 0x11) == ALLOWED
    assert judge(machine, clone, 0x3D0F00) == ALLOWED  # a thread
    for flag in (
        0x80,
        0x20000,
        0x2000000,
        0x4000000,
        0x8000000,
        0x10000000,
        0x20000000,
        0x40000000,
    ):
        assert judge(machine, clone, 0x11 | flag) == "EPERM"


@MACHINES
def test_sockets_are_those_of_one_machine_and_the_internet(machine):
    for family in range(50):
        plain = judge(machine, machine.numbers["socket"], family, 1)
        assert plain == (ALLOWED if family in {1, 2, 10} else "EPERM")
        assert judge(machine, machine.numbers["socketpair"], family, 1) == plain
    for kind in range(16):
        said = judge(machine, machine.numbers["socket"], 2, kind | 0o2000000)
        assert said == (ALLOWED if kind in {1, 2, 5} else "EPERM")


@MACHINES
def test_high_bits_of_an_argument_hide_nothing(machine):
    assert judge(machine, machine.numbers["ioctl"], 0, 0x5412 | 1 << 32) == "EPERM"
    assert judge(machine, machine.numbers["ioctl"], 0, 0x541C) == "EPERM"
    assert judge(machine, machine.numbers["ioctl"], 0, 0x5413) == ALLOWED
    assert judge(machine, machine.numbers["socket"], 16 | 1 << 32, 1) == "EPERM"


@MACHINES
def test_calls_of_another_machine_end_the_process(machine):
    assert judge(machine, 1, audit=0x40000003) == KILLED
    x32 = judge(machine, 0x40000000 | 39)
    assert x32 == (KILLED if machine.has_x32 else ALLOWED)

"""The filter of system calls, run by an interpreter of its instructions, for both kinds of machine."""

from __future__ import annotations

import errno
import struct

import pytest

from rollout.tools.sandbox.seccomp import build_filter
from rollout.tools.sandbox.system_calls import ASKED, INSPECTED, MACHINE_CALLS

ALLOWED, KILLED, ASKS, DONE = "allowed", "killed", "asks process 1", "said to be done"


def judge(
    machine, number: int, *arguments: int, audit: int | None = None, code: bytes | None = None
) -> str:
    """What the kernel would do: classic BPF over ``struct seccomp_data`` (linux/seccomp.h)."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, machine.audit if audit is None else audit, 0, *words)
    code = build_filter(machine) if code is None else code
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
                return errno.errorcode[value & 0xFFFF] if value & 0xFFFF else DONE
            return {0x7FFF0000: ALLOWED, 0x7FC00000: ASKS, 0x80000000: KILLED}[action]
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[kind]
            place += yes if holds else no


MACHINES = pytest.mark.parametrize("machine", MACHINE_CALLS.values(), ids=MACHINE_CALLS)


@MACHINES
def test_calls_that_are_named_are_refused_and_the_others_are_not(machine):
    refused = {
        number: name
        for name, number in machine.numbers.items()
        if name not in INSPECTED and name not in ASKED
    }
    for number in range(470):
        said = judge(machine, number, 1, 1)
        if number in refused:
            wanted = "ENOSYS" if refused[number] in {"clone3", "memfd_create"} else "EPERM"
            assert said == wanted, refused[number]
        elif number not in {machine.numbers[name] for name in INSPECTED}:
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
def test_where_process_1_is_asked_no_socket_of_the_internet_is_made_and_no_connection_unseen(
    machine,
):
    code, numbers = build_filter(machine, (1,), asks=True), machine.numbers
    for family in range(50):
        for kind in range(16):
            said = judge(machine, numbers["socket"], family, kind | 0o2004000, code=code)
            asks, made = family in {2, 10} and kind == 1, family == 1 and kind in {1, 2, 5}
            assert said == (ASKS if asks else ALLOWED if made else "EPERM"), (family, kind)
        pair = judge(machine, numbers["socketpair"], family, 1, code=code)
        assert pair == (ALLOWED if family == 1 else "EPERM")
    assert judge(machine, numbers["connect"], 3, 1 << 40, 16, code=code) == ASKS
    for level in (0, 1, 6, 41, 263):
        said = judge(machine, numbers["setsockopt"], 3, level, 1, code=code)
        assert said == (DONE if level in {0, 6, 41} else ALLOWED)
    for number in set(range(470)) - {numbers[name] for name in ASKED | {"socket", "socketpair"}}:
        plain = judge(machine, number, 1, 1, code=build_filter(machine, (1,)))
        assert judge(machine, number, 1, 1, code=code) == plain, number


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

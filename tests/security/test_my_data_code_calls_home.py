"""The attacker's wish: data code that reaches the network of the coordinator's pod, and with it what answers by address."""

import errno
import json
import os
import struct
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from author_runs import build_config, write_environment

from rollout.coordinator.rows import build_rows
from rollout.errors import DataError, SpecError
from rollout.plugins import network

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in network.MACHINES,
    reason="a filter of Linux",
)
ATTACKS = {
    "a stream": "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "a datagram": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "the kernel's own": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "the host of a virtual machine": "socket.socket(40, socket.SOCK_STREAM)",
    "a family with high bits": "call(MACHINE.socket, 2 | 1 << 32, 1, 0)",
    "a call without Python": "call(MACHINE.socket, 2, 1, 0)",
    "a thread from before": "old_thread.ask(lambda: socket.socket())",
    "a program of its own": "run('import socket; socket.socket()')",
    "a ring": "call(425, 8, ctypes.create_string_buffer(256))",
    "another's descriptor": "call(438, os.pidfd_open(os.getppid()), 0, 0)",
    "another's memory": "call(MACHINE.of_others[0], 16, os.getppid(), 0, 0)",
}
STAGE = """
import concurrent.futures, ctypes, json, os, socket, subprocess, sys
from rollout.plugins.network import MACHINES, close_network

MACHINE = MACHINES[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)

def call(*arguments):
    if libc.syscall(*map(as_word, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")

def as_word(value):
    return ctypes.c_long(value) if isinstance(value, int) else value

def run(code):
    subprocess.run([sys.executable, "-S", "-c", code], check=True, stderr=subprocess.DEVNULL)

class Old:
    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.pool.submit(int).result()
    def ask(self, work):
        return self.pool.submit(work).result()

old_thread = Old()
if sys.argv[1] == "closed":
    close_network()
socket.socketpair()
found = {}
for name, attack in json.loads(sys.argv[2]).items():
    try:
        eval(attack)
        found[name] = "succeeded"
    except OSError as error:
        found[name] = error.errno
    except subprocess.CalledProcessError:
        found[name] = "failed"
print(json.dumps(found))
"""


HARMLESS = ("a stream", "a datagram", "a call without Python", "a program of its own")
"""Attacks that a process may try on the tests' own process."""


def attack(state, attacks):
    command = [sys.executable, "-c", STAGE, state, json.dumps(attacks)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_way_to_a_socket_is_refused_and_those_of_a_plain_process_are_not():
    refused = attack("closed", ATTACKS)
    assert set(refused.values()) <= {errno.EACCES, "failed"}, refused
    plain = attack("open", {name: ATTACKS[name] for name in HARMLESS})
    assert set(plain.values()) == {"succeeded"}, plain


OTHER_CALLS = [
    "import ctypes; ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39))",
    "import ctypes; ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 41), 2, 1, 0)",
]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is of x86-64")
@pytest.mark.parametrize("code", OTHER_CALLS)
def test_calls_of_the_other_numbering_end_the_process(code):
    closed = f"from rollout.plugins.network import close_network; close_network(); {code}"
    assert subprocess.run([sys.executable, "-c", closed], check=False).returncode == -31


def judge(code, *, audit, number, first=0):
    """What the kernel would do with a call: the program run by hand."""
    data = struct.pack("=IIQ6Q", number, audit, 0, first, 0, 0, 0, 0, 0)
    steps = list(struct.iter_unpack("=HBBI", code))
    at, value = 0, 0
    while True:
        kind, yes, no, operand = steps[at]
        at += 1
        if kind == network.LOAD:
            (value,) = struct.unpack_from("=I", data, operand)
        elif kind == network.RETURN:
            return operand
        else:
            held = value == operand if kind == network.JUMP_IF_EQUAL else value >= operand
            at += yes if held else no


@pytest.mark.parametrize("name", network.MACHINES)
def test_the_filter_of_each_machine_takes_sockets_and_leaves_the_rest(name):
    machine = network.MACHINES[name]
    code = network.build_filter(machine)
    refused = network.ERRNO | errno.EACCES

    def verdict(number, first=0, audit=machine.audit):
        return judge(code, audit=audit, number=number, first=first)

    for family in (2, 10, 16, 17, 40, 1 << 31):
        assert verdict(machine.socket, family) == refused
    assert verdict(machine.socket, 1) == network.ALLOW
    for number in (*network.IO_URING, network.PIDFD_GETFD, *machine.of_others):
        assert verdict(number) == refused
    others = {machine.socket, *network.IO_URING, network.PIDFD_GETFD, *machine.of_others}
    assert {verdict(n) for n in range(500) if n not in others} == {network.ALLOW}
    for foreign in {one.audit for one in network.MACHINES.values()} - {machine.audit} | {
        0x40000003
    }:
        assert verdict(1, audit=foreign) == network.KILL_PROCESS
    assert verdict(network.X32_CALLS | 1) == network.KILL_PROCESS


def test_a_machine_that_cannot_close_it_runs_no_data_code(monkeypatch):
    monkeypatch.setattr(network.platform, "machine", lambda: "riscv64")
    with pytest.raises(SpecError, match=r"riscv64 is not known.*dataCodeNetwork"):
        network.close_network()


CONNECT = """
import socket
socket.create_connection(("127.0.0.1", 1))
"""


@pytest.fixture
def listen():
    """Starts the container's process with these arguments; where it listens."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    started = []
    with tempfile.TemporaryDirectory(prefix="rows-") as name:

        def start(*arguments):
            place = Path(name, "socket")
            command = [sys.executable, "-m", "rollout.entrypoints.rows", "--socket", str(place)]
            environment = {**given, "HOME": name, "ROLLOUT_CACHE": name}
            started.append(subprocess.Popen([*command, *arguments], env=environment))
            return place

        yield start
        for one in started:
            one.terminate()
            one.wait()


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), r"PermissionError.*no network here.*spec\.allowed\.dataCodeNetwork"),
        (("--network", "pod"), "ConnectionRefusedError"),
    ],
    ids=["closed", "open"],
)
def test_the_container_closes_it_unless_it_is_told_otherwise(listen, tmp_path, arguments, said):
    name = f"mine_{uuid.uuid4().hex}"
    config = build_config(write_environment(tmp_path, CONNECT, name), name)
    layout = config.layout.model_copy(update={"rows_socket": str(listen(*arguments))})
    with pytest.raises(DataError, match=said):
        build_rows(config.model_copy(update={"layout": layout})).train([0])

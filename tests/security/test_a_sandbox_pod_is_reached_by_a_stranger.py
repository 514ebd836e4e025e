"""The attacker's wish: a sandbox pod of another's episode, its answers forged, or the network that a pod has."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from dataclasses import replace

import pytest
from boxed_pods import LOOPBACK, boxed, free_port, start
from escapes import ESCAPES

from rollout.errors import InfrastructureError, SpecError
from rollout.tools.sandbox.contract import SandboxLimits
from rollout.tools.sandbox.pods.sandbox import PodSandboxes, SandboxGrant

pytestmark = pytest.mark.process
LIMITS = SandboxLimits(seconds=60, memory_bytes=256 << 20)
ROOM = 512 << 20
PYTHON = ("/usr/bin/env", "python3", "-I", "-c")
HELD = (
    "sockets of the kernel, of the host of a virtual machine, and raw packets",
    "rings, faults, programs, keys and counters of the kernel",
    "namespaces and mounts of its own",
    "to kill, stop or look into what watches it",
    "the metadata service, the API server and names",
    "processes of others",
    "a process that outlives its command",
    "to forge its own result",
)


async def test_a_pod_runs_commands_whose_files_stay_as_any_sandbox(sandbox_host):
    async with boxed(sandbox_host) as pods:
        sandbox = await PodSandboxes(pods, ROOM).open(LIMITS)
        await sandbox.run((*PYTHON, "open('kept', 'w').write('here'); print('x' * 10**6)"))
        second = await sandbox.run((*PYTHON, "print(open('kept').read(), input())"), stdin=b"yes\n")
        assert second.stdout.head == b"here yes\n"
        await sandbox.close()
        assert pods.released == [("pod-0", False)]
        with pytest.raises(InfrastructureError, match="has ended"):
            await sandbox.run((*PYTHON, "print(1)"))


@pytest.mark.parametrize(
    "escape",
    [one for one in ESCAPES if one.wish in HELD],
    ids=lambda one: one.wish.replace(" ", "-"),
)
async def test_what_the_pods_own_filter_and_process_hold_is_held(escape, sandbox_host):
    async with boxed(sandbox_host) as pods:
        sandbox = await PodSandboxes(pods, ROOM).open(LIMITS)
        result = await sandbox.run((*PYTHON, escape.code))
        said = (result.stdout.head + result.stderr.head).decode()
        assert (result.cause, escape.says in said) == (escape.cause, True), (result, said)


async def test_no_socket_reaches_past_the_pod_though_it_has_a_network(sandbox_host):
    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(10))
        writer.close()

    heard: list[bytes] = []
    server = await asyncio.start_server(hear, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    code = f"""
import socket
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            socket.socket(family, kind).connect(('{LOOPBACK}', {port}))
            print('open')
        except PermissionError:
            print('closed')
"""
    async with boxed(sandbox_host) as pods:
        sandbox = await PodSandboxes(pods, ROOM).open(LIMITS)
        result = await sandbox.run((*PYTHON, code))
    server.close()
    assert result.stdout.head.split() == [b"closed"] * 4
    assert not heard


async def greet(port: int, secret: bytes, key: bytes) -> bytes:
    """What a caller hears that says this key; empty: it was sent away."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    nonce = os.urandom(32)
    writer.write(nonce)
    proof = await reader.readexactly(32)
    assert proof == hmac.new(secret, b"pod" + nonce, hashlib.sha256).digest()
    writer.write(key)
    try:
        return await reader.read(1)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_whoever_does_not_know_the_key_is_sent_away_and_the_owner_still_comes_in(
    sandbox_host,
):
    port, secret, key = free_port(), os.urandom(32), os.urandom(32)
    process = await start(sandbox_host, port, secret, key)
    try:
        assert await greet(port, secret, os.urandom(32)) == b""
        assert await greet(port, secret, hashlib.sha256(key).digest()) == b""
        assert await greet(port, secret, key) == b"\x01"
        assert await asyncio.wait_for(process.wait(), 60) == 0, "it ends with its one caller"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Impostor:
    """A broker whose pod has gone, and whose address is another's by now."""

    def __init__(self, port: int) -> None:
        self.port, self.released = port, []

    async def claim(self) -> SandboxGrant:
        return SandboxGrant(
            name="mine", address=LOOPBACK, port=self.port, secret=b"s" * 32, key=b"k" * 32
        )

    async def release(self, name: str, *, lost: bool) -> bool:
        self.released.append(name)
        return False


async def test_another_pod_at_the_address_is_not_believed_and_not_told_the_key():
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readexactly(32))
        writer.write(b"p" * 32)
        heard.append(await reader.read(100))
        writer.close()
        hung_up.set()

    heard: list[bytes] = []
    hung_up = asyncio.Event()
    server = await asyncio.start_server(pretend, LOOPBACK, 0)
    broker = Impostor(server.sockets[0].getsockname()[1])
    with pytest.raises(InfrastructureError, match="is not sandbox pod mine any more"):
        await PodSandboxes(broker, ROOM).open(LIMITS)
    await hung_up.wait()
    server.close()
    assert heard[1:] == [b""] and broker.released == ["mine"]


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\0\0\0\x02{}", b"\0\0\0\x05hello", b""])
async def test_what_is_no_answer_is_infrastructure_and_never_a_result(frame):
    secret = b"s" * 32

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = await reader.readexactly(32)
        writer.write(hmac.new(secret, b"pod" + nonce, hashlib.sha256).digest())
        await reader.readexactly(32)
        writer.write(b"\x01" + b'\0\0\0\x0e{"ready":true}')
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
        await reader.readexactly(4)
        writer.write(frame)
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0)
    broker = Impostor(server.sockets[0].getsockname()[1])
    sandbox = await PodSandboxes(broker, ROOM).open(LIMITS)
    with pytest.raises(InfrastructureError):
        await sandbox.run((*PYTHON, "print(1)"))
    server.close()
    assert broker.released == ["mine"]


@pytest.mark.parametrize("past_memory", [True, False])
async def test_a_pod_that_dies_is_infrastructure_but_for_the_programs_own_memory(
    sandbox_host, past_memory
):
    async with boxed(sandbox_host, past_memory=past_memory) as pods:
        sandbox = await PodSandboxes(pods, ROOM).open(LIMITS)
        running = asyncio.ensure_future(sandbox.run((*PYTHON, "import time; time.sleep(60)")))
        await asyncio.sleep(0)
        pods.processes["pod-0"].kill()
        if past_memory:
            assert (await running).cause == "memory"
        else:
            with pytest.raises(InfrastructureError, match="sandbox pod pod-0 has ended"):
                await running
        assert pods.released == [("pod-0", True)]


async def test_a_program_that_no_pod_has_room_for_is_refused_with_what_to_raise(sandbox_host):
    async with boxed(sandbox_host) as pods:
        with pytest.raises(SpecError, match=r"256 MiB, .*128 MiB: .*spec.sandbox.memory"):
            await PodSandboxes(pods, 128 << 20).open(LIMITS)
        assert not pods.processes


async def test_a_pod_that_cannot_listen_says_why_and_ends(sandbox_host):
    process = await start(sandbox_host, 1, b"s" * 32, b"k" * 32)
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode and b"Permission denied" in said


async def test_a_command_past_its_time_ends_and_the_pod_serves_the_next(sandbox_host):
    async with boxed(sandbox_host) as pods:
        sandbox = await PodSandboxes(pods, ROOM).open(replace(LIMITS, seconds=1))
        late = await sandbox.run((*PYTHON, "while True: pass"))
        after = await sandbox.run((*PYTHON, "print('still here')"))
        assert late.cause == "time" and after.stdout.head == b"still here\n"

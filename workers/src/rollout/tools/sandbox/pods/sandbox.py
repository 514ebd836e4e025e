"""Sandboxes that are pods: an actor asks the run's broker for one, and speaks to process 1 in there over one connection.

Nothing is believed because of an address: the pod proves that it is the one that the broker made before it is told the
key, and takes no other caller afterwards. That a pod died is an InfrastructureError, unless the kernel ended it because
what ran in it was past its memory: that is the policy's doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rollout.common.quantities import parse_quantity
from rollout.errors import InfrastructureError, SpecError
from rollout.tools.sandbox.contract import CommandResult, SandboxLimits, Stream, check_command
from rollout.tools.sandbox.pods.program import pod_filters
from rollout.tools.sandbox.process import ANSWER_SECONDS_MARGIN, Conversation, SandboxReady

if TYPE_CHECKING:
    from rollout.tools.sandbox.served import ServedProgram

T = TypeVar("T")

DIAL_SECONDS_MAX = 30.0
"""How long a pod that is ready may take to answer."""
DIAL_PAUSE_SECONDS = 0.1
NONCE_BYTES = 32

OVERHEAD_BYTES = 128 << 20
"""Of a pod's memory: for process 1, and for what a program takes between two looks at it."""


def program_memory(memory: str) -> int:
    """What a program may use of a pod's memory, a Kubernetes quantity. Raises SpecError."""
    return parse_quantity(memory) - OVERHEAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxGrant:
    """One pod, for one episode. ``secret`` is what it proves to be the one by, ``key`` what it lets its caller in by."""

    name: str
    address: str
    port: int
    secret: bytes
    key: bytes


class SandboxBroker(Protocol):
    """Who makes the pods of a run."""

    async def claim(self) -> SandboxGrant:
        """A pod that is ready. Raises InfrastructureError where none comes in time."""
        ...

    async def release(self, name: str, *, lost: bool) -> bool:
        """It is not needed any more. Of a ``lost`` one: whether it was ended because it was past its memory."""
        ...


class PodSandboxes:
    """Makes sandboxes from the pods of a run. ``memory_bytes``: what a pod has for what runs in it."""

    def __init__(self, broker: SandboxBroker, memory_bytes: int) -> None:
        self._broker, self.memory_bytes = broker, memory_bytes

    async def open(self, limits: SandboxLimits) -> PodSandbox:
        """A fresh sandbox. Raises InfrastructureError where it does not come up, SpecError for one that no pod has room for."""
        self.require_room(limits)
        return await self.begin(limits, {"filters": pod_filters()})

    async def serve(
        self, argv: tuple[str, ...], files: Mapping[str, bytes], limits: SandboxLimits
    ) -> ServedProgram:
        """A fresh one with one program, which is spoken to line by line; ``files`` lie in its working folder.

        ``argv`` is found in the pod's ``PATH``. Raises InfrastructureError, SpecError, ValueError for more files than a
        sandbox takes.
        """
        from rollout.tools.sandbox.pods.servers import serve_in_pod

        return await serve_in_pod(self, argv, files, limits)

    def require_room(self, limits: SandboxLimits) -> None:
        """Raise SpecError for what no pod has room for."""
        if limits.memory_bytes > self.memory_bytes:
            raise SpecError(
                f"a program may use {limits.memory_bytes >> 20} MiB, a sandbox pod of the runtime has room for"
                f" {self.memory_bytes >> 20} MiB: lower memoryMib, or raise the runtime's spec.sandbox.memory"
            )

    async def begin(self, limits: SandboxLimits, given: Mapping[str, Any]) -> PodSandbox:
        """A fresh one whose process 1 is ``given`` this beside its limits. Raises InfrastructureError."""
        grant = await self._broker.claim()
        try:
            async with asyncio.timeout(DIAL_SECONDS_MAX):
                lane = await dial(grant)
                reader, writer = await asyncio.open_connection(sock=lane)
            sandbox = PodSandbox(grant, reader, writer, limits, self._broker)
        except BaseException as error:
            await self._broker.release(grant.name, lost=False)
            if isinstance(error, TimeoutError | OSError):
                raise InfrastructureError(f"sandbox pod {grant.name}: {error}") from error
            raise
        try:
            async with asyncio.timeout(DIAL_SECONDS_MAX):
                await sandbox.start(given)
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, TimeoutError):
                raise InfrastructureError(
                    f"sandbox pod {grant.name} does not begin: no answer in {DIAL_SECONDS_MAX:g} s"
                ) from error
            raise
        return sandbox


async def dial(grant: SandboxGrant) -> socket.socket:
    """A connection to the very pod; one that does not listen yet is dialled again. Raises InfrastructureError, OSError."""
    family = socket.AF_INET6 if ":" in grant.address else socket.AF_INET
    while True:
        lane = socket.socket(family, socket.SOCK_STREAM)
        try:
            lane.settimeout(0)
            lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(lane, (grant.address, grant.port))
            await _greet(grant, lane)
        except ConnectionRefusedError:
            lane.close()
            await asyncio.sleep(DIAL_PAUSE_SECONDS)
        except BaseException:
            lane.close()
            raise
        else:
            return lane


async def _greet(grant: SandboxGrant, lane: socket.socket) -> None:
    """Hear who that is, then say who this is. Raises InfrastructureError for another pod, OSError."""
    loop, nonce = asyncio.get_running_loop(), os.urandom(NONCE_BYTES)
    await loop.sock_sendall(lane, nonce)
    proof = await _receive(lane, NONCE_BYTES)
    wanted = hmac.new(grant.secret, b"pod" + nonce, hashlib.sha256).digest()
    if not hmac.compare_digest(proof, wanted):
        raise InfrastructureError(f"{grant.address} is not sandbox pod {grant.name} any more")
    await loop.sock_sendall(lane, grant.key)
    await _receive(lane, 1)


async def _receive(lane: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await asyncio.get_running_loop().sock_recv(lane, size - len(data))
        if not more:
            raise ConnectionError("hung up")
        data += more
    return data


class PodSandbox:
    """One of them. Commands wait for each other; a call that is cancelled ends the sandbox."""

    def __init__(
        self,
        grant: SandboxGrant,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: SandboxLimits,
        broker: SandboxBroker,
    ) -> None:
        self.grant, self._limits, self._broker = grant, limits, broker
        self._writer, self._lock = writer, asyncio.Lock()
        self._words = Conversation(
            reader, writer, limits, lambda why: f"sandbox pod {grant.name} has ended: {why}"
        )
        self._closed = False

    async def start(self, given: Mapping[str, Any]) -> None:
        """Send the limits and what is given beside them, and wait for process 1. Raises InfrastructureError."""
        await self._words.send({**asdict(self._limits), **given})
        answer = await self._words.receive(SandboxReady)
        if not answer.ready:
            raise InfrastructureError(f"sandbox pod {self.grant.name} does not begin: {answer.why}")

    async def send(self, message: object) -> None:
        """Say a frame to process 1. Raises InfrastructureError."""
        await self._words.send(message)

    async def receive(self, kind: type[T]) -> T:
        """Process 1's next frame. Raises InfrastructureError."""
        return await self._words.receive(kind)

    async def run(
        self, argv: tuple[str, ...], *, stdin: bytes = b"", seconds: float | None = None
    ) -> CommandResult:
        """As ``Sandbox.run``."""
        check_command(argv, stdin, self._limits)
        allowed = min(self._limits.seconds, seconds or self._limits.seconds)
        request = {"argv": argv, "stdin": stdin, "seconds": allowed}
        async with self._lock:
            if self._closed:
                raise InfrastructureError("this sandbox has ended")
            self._words.count()
            try:
                async with asyncio.timeout(allowed + ANSWER_SECONDS_MARGIN):
                    return await self._words.ask(request)
            except InfrastructureError:
                if await self.was_past_memory():
                    return CommandResult(cause="memory", code=-9, stdout=Stream(), stderr=Stream())
                raise
            except TimeoutError as error:
                await self.close()
                raise InfrastructureError(
                    f"sandbox pod {self.grant.name} did not answer and was ended"
                ) from error
            except BaseException:
                await self.close()
                raise

    def hang_up(self) -> None:
        """End everything in it, unheard; it is still to be closed."""
        self._writer.close()

    async def close(self) -> None:
        """End everything in it; idempotent."""
        await self._end(lost=False)

    async def was_past_memory(self) -> bool:
        """End what has been lost: whether that was because what ran in there was past its memory."""
        return await self._end(lost=True)

    async def _end(self, *, lost: bool) -> bool:
        if self._closed:
            return False
        self._closed = True
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        return await self._broker.release(self.grant.name, lost=lost)

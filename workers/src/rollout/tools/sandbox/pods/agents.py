"""Sandbox pods for programs that own their loop: the door of one is in the pod, and what comes through it is answered here.

The actor makes the connections, so that nothing has to be let out of a pod: it dials some ahead, and one that the pod says
is taken carries a connection of the agent's. What answers it is the episode's endpoint, in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from typing import TypeVar

import msgspec

from rollout.errors import InfrastructureError
from rollout.tools.sandbox.agent_sandbox import LOGS, PORT, TESTS, AgentSandbox, Answering
from rollout.tools.sandbox.contract import SandboxLimits
from rollout.tools.sandbox.pods.program import call_numbers, pod_filters
from rollout.tools.sandbox.pods.sandbox import (
    DIAL_SECONDS_MAX,
    PodSandbox,
    PodSandboxes,
    SandboxGrant,
    dial,
)
from rollout.tools.sandbox.process import CommandAnswer

LANES_AHEAD = 2
"""Connections that wait to be taken: an agent that opens one more waits for the next to be dialled."""
PAUSE_SECONDS = 0.5
FAILURES_MAX = 20
"""In a row, of one lane: the pod has ended, which whoever waits for its command is told."""
MOUNTS = {TESTS: "/tests", LOGS: "/logs"}
"""Folders that the pod's template mounts: where tasks in Harbor's form look for them."""
PYTHON = "python3"

T = TypeVar("T")


async def open_agent_pod(maker: PodSandboxes, limits: SandboxLimits) -> AgentSandbox:
    """A fresh one, with the memory of a pod at most. Raises InfrastructureError."""
    numbers = call_numbers("socket", "connect", "seccomp")
    given = {
        "filters": pod_filters(asks=True),
        "door": {
            "port": PORT,
            "numbers": numbers,
            "seccomp": {machine: one["seccomp"] for machine, one in numbers.items()},
            "mounts": MOUNTS,
        },
    }
    held = replace(limits, memory_bytes=min(limits.memory_bytes, maker.memory_bytes))
    sandbox = await maker.begin(held, given)
    return AgentSandbox(PodHosting(sandbox), PYTHON, PodDoor(sandbox.grant))


class PodHosting:
    """What speaks to the process 1 of a pod; that the pod ended past its memory is the agent's doing."""

    def __init__(self, sandbox: PodSandbox) -> None:
        self._sandbox = sandbox

    async def send(self, message: object) -> None:
        """As ``Hosting.send``."""
        await self._sandbox.send(message)

    async def receive(self, kind: type[T]) -> T:
        """As ``Hosting.receive``."""
        try:
            return await self._sandbox.receive(kind)
        except InfrastructureError:
            if kind is not CommandAnswer or not await self._sandbox.was_past_memory():
                raise
        nothing = {"head": "", "tail": "", "num_bytes": 0}
        ended = {"cause": "memory", "code": -9, "num_left": 0, "stdout": nothing, "stderr": nothing}
        return msgspec.convert(ended, kind)

    async def close(self) -> None:
        """As ``Hosting.close``."""
        await self._sandbox.close()


class PodDoor:
    """Connections to a pod that are dialled ahead, and answered when the agent takes them."""

    def __init__(self, grant: SandboxGrant) -> None:
        self._grant = grant
        self._lanes: list[asyncio.Task[None]] = []

    async def serve(self, answering: Answering) -> None:
        """As ``AgentDoor.serve``."""
        self._lanes = [asyncio.create_task(self._offer(answering)) for _ in range(LANES_AHEAD)]

    def close(self) -> None:
        """As ``AgentDoor.close``."""
        for lane in self._lanes:
            lane.cancel()

    async def _offer(self, answering: Answering) -> None:
        """One lane after the other."""
        failures = 0
        while failures < FAILURES_MAX:
            try:
                lane = await self._taken()
            except (InfrastructureError, OSError, TimeoutError):
                failures += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            failures = 0
            await asyncio.get_running_loop().connect_accepted_socket(answering, lane)

    async def _taken(self) -> socket.socket:
        """A lane that the agent has taken. Raises InfrastructureError, OSError, TimeoutError."""
        async with asyncio.timeout(DIAL_SECONDS_MAX):
            lane = await dial(self._grant)
        with contextlib.ExitStack() as held:
            held.callback(lane.close)
            if not await asyncio.get_running_loop().sock_recv(lane, 1):
                raise ConnectionError("hung up")
            held.pop_all()
        return lane

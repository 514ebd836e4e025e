"""An agent as an environment: its requests are the states of the episode, its end is judged by a verifier.

The agent runs in a sandbox whose only way out is its episode's endpoint. What it does is the policy's doing; that it never
asks for a reply is its task's; a verifier that crashes, and a sandbox that is lost, are infrastructure's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollout.environments.agents.asks import AgentAsk, AskRefused, build_reply
from rollout.environments.agents.endpoint import AgentEndpoint
from rollout.environments.agents.history import AgentHistory
from rollout.environments.agents.program import (
    AgentProgram,
    agent_command,
    describe_output,
    read_verdict,
    verifier_command,
)
from rollout.environments.memory import EpisodeMemory
from rollout.errors import DataError
from rollout.seams import DataSource, Memory
from rollout.tools.sandbox.agent_sandbox import AgentSandbox
from rollout.tools.sandbox.chosen import open_for_agent
from rollout.tools.sandbox.contract import CommandResult, SandboxLimits
from rollout.turns import Action, Ending, State
from rollout.types import Row

LIFETIME_SECONDS = 6 * 3600.0
TURN_SECONDS_MAX = 180.0
"""Of the agent's own between two requests."""
LEAVE_SECONDS = 10.0
"""For an agent that is refused another turn, to end by itself."""
LIMITS = SandboxLimits(seconds=LIFETIME_SECONDS, lifetime_seconds=LIFETIME_SECONDS)
"""Beside the program's own."""
Ended = tuple[CommandResult, Mapping[str, bytes]]


class AgentEnv:
    """One episode. ``memory``: what its endpoint answers of it; None: nothing."""

    def __init__(self, program: AgentProgram, row: Row, memory: Memory | None = None) -> None:
        self._program, self._row = program, row
        self._endpoint = AgentEndpoint(key=secrets.token_hex(16), memory=memory)
        self._history = AgentHistory()
        self._sandbox: AgentSandbox | None = None
        self._running: asyncio.Task[Ended] | None = None
        self._seconds_left = program.seconds

    async def start(self) -> State:
        """The agent's first request. Raises DataError for an agent that asks nothing, InfrastructureError."""
        program = self._program
        limits = replace(LIMITS, memory_bytes=program.memory_bytes, disk_bytes=program.disk_bytes)
        self._sandbox = await open_for_agent(limits)
        await self._endpoint.serve(self._sandbox.door)
        command = agent_command(program, self._row, self._endpoint.key, LIFETIME_SECONDS)
        self._running = asyncio.create_task(self._sandbox.run(command))
        ask, why = await self._listen()
        if ask is not None:
            return self._history.take_ask(ask)
        result = await self._end_agent()
        raise DataError(
            f"agent {' '.join(program.command)[:80]}: it asked for no reply ({why}, exit code"
            f" {result.code}): {describe_output(result)}"
        )

    async def step(self, action: Action) -> State | Ending:
        """The agent's next request, or what its verifier says of its end. Raises InfrastructureError."""
        reply = build_reply(action)
        self._history.take_reply(reply)
        self._endpoint.answer(reply)
        if self._history.num_turns == self._program.max_turns:
            message = f"the episode's {self._program.max_turns} turns are used up"
            self._endpoint.turn_away(AskRefused(400, message, code="turn_limit_reached"))
        ask, why = await self._listen()
        if ask is not None:
            return self._history.take_ask(ask)
        return await self._judge(why, await self._end_agent())

    async def close(self) -> None:
        """End the agent and its endpoint; idempotent."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        if self._sandbox is not None:
            await self._sandbox.close()
        await self._endpoint.close()

    async def _listen(self) -> tuple[AgentAsk | None, str]:
        """The next request; or None, and why there is none."""
        assert self._running is not None
        loop = asyncio.get_running_loop()
        since = loop.time()
        asking = asyncio.create_task(self._endpoint.next())
        flooded = asyncio.create_task(self._endpoint.flooded.wait())
        away = asyncio.create_task(self._endpoint.turned_away.wait())
        try:
            seconds = min(self._seconds_left, TURN_SECONDS_MAX)
            waits = {self._running, asking, flooded, away}
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._endpoint.refusal is None and asking.done():
                return asking.result(), ""
            if self._endpoint.flooded.is_set():
                return None, "request-limit"
            if self._endpoint.turned_away.is_set():  # also where the agent left at once
                await asyncio.wait({self._running}, timeout=LEAVE_SECONDS)
                return None, "turn-limit"
            return None, "stop" if self._running.done() else "seconds-limit"
        finally:
            self._seconds_left = max(0.0, self._seconds_left - (loop.time() - since))
            for one in (asking, flooded, away):
                one.cancel()

    async def _end_agent(self) -> CommandResult:
        """What became of the agent, which is stopped where it still runs. Raises InfrastructureError."""
        assert self._running is not None and self._sandbox is not None
        if not self._running.done():
            await self._sandbox.stop()
        self._endpoint.turn_away(AskRefused(503, "the episode is over"))
        result, _ = await self._running
        return result

    async def _judge(self, why: str, result: CommandResult) -> Ending:
        kind = why if why != "stop" or result.cause == "exit" else f"agent-{result.cause}"
        signals = {"turns": float(self._history.num_turns), "exit_code": float(result.code)}
        detail = f"exit code {result.code}: {describe_output(result)}"
        if self._program.verifier is None:
            return Ending(kind=kind, detail=detail, signals=signals)
        assert self._sandbox is not None
        verifier = self._program.verifier
        judged, files = await self._sandbox.run(verifier_command(verifier, self._row))
        verdict = read_verdict(judged, files, by_file=verifier.by_file)
        return Ending(
            kind=kind, detail=detail, turn_reward=verdict, signals={**signals, "verdict": verdict}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBuilder:
    """Builds episodes; the rows are the run's. ``program`` is the same for all of them."""

    program: AgentProgram

    def source(self, split: str, seed: int) -> DataSource | None:
        """No rows of its own."""
        del split, seed
        return None

    async def asks_memory(self) -> bool:
        """Whether the manifest says so."""
        return self.program.memory

    def build(self, row: Row) -> AgentEnv:
        """As ``build_with_memory``, with a memory of nothing, which nobody keeps."""
        return self.build_with_memory(row, EpisodeMemory())

    def build_with_memory(self, row: Row, memory: Memory) -> AgentEnv:
        """The episode of one row."""
        return AgentEnv(self.program, row, memory if self.program.memory else None)

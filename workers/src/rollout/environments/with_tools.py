"""An environment whose policy may call tools: calls are answered here, other replies by the environment itself.

A reply with calls never reaches the inner environment; one without does, and is its last word on a question of one
turn. Wrong calls are answered with what is wrong, a policy that asks the same over and over ends as ``tool-loop``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from rollout.environments.memory import build_episode, wants_memory
from rollout.errors import SpecError
from rollout.seams import DataSource, Env, EnvBuilder, Memory
from rollout.tools.contract import ToolSource
from rollout.tools.sources import build_sources
from rollout.tools.toolbox import Toolbox
from rollout.turns import Action, Ending, State, ToolSpec
from rollout.types import Message, Row
from rollout_api.v1alpha1.environment import Environment

COUNTED = ("tool_calls", "tool_errors", "tool_invalid", "tool_repeats", "tool_timeouts")
"""What is told of every episode, none included: a mean over those with calls only would say nothing."""


class ToolEnv:
    """One episode with tools around another environment's."""

    def __init__(self, inner: Env, toolbox: Toolbox) -> None:
        self._inner, self._toolbox = inner, toolbox
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))

    async def start(self) -> State:
        """The inner environment's beginning, with the tools. Raises SpecError for one that has tools of its own."""
        return replace(_without_tools(await self._inner.start()), tools=self._toolbox.specs)

    async def step(self, action: Action) -> State | Ending:
        """The results of the calls, or what the inner environment says. Raises InfrastructureError as tools do."""
        if action.calls:
            return await self._answer(action)
        said = await self._inner.step(action)
        told = said if isinstance(said, Ending) else _without_tools(said)
        return replace(told, signals={**self._counts, **told.signals})

    async def _answer(self, action: Action) -> State | Ending:
        done = await self._toolbox.answer(action.calls)
        self._counts.update(done.signals)
        if done.loop:
            return Ending(kind="tool-loop", detail=done.loop, signals=dict(self._counts))
        results = Message(role="tool", content=done.results)
        return State(messages=(results,), signals=dict(self._counts))

    async def close(self) -> None:
        """Close the tools and the inner environment."""
        try:
            await self._toolbox.close()
        finally:
            await self._inner.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBuilder:
    """Builds the episodes of ``inner`` with the tools of ``sources``."""

    inner: EnvBuilder
    sources: tuple[ToolSource, ...]

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the policy sees, by name."""
        specs = [spec for source in self.sources for spec in source.specs]
        return tuple(sorted(specs, key=lambda spec: spec.name))

    def source(self, split: str, seed: int) -> DataSource | None:
        """The inner environment's rows."""
        return self.inner.source(split, seed)

    async def asks_memory(self) -> bool:
        """Whether the inner environment's do."""
        return await wants_memory(self.inner)

    def build(self, row: Row) -> ToolEnv:
        """The episode of one row; no tool is started. Raises DataError for a row that its tools cannot use."""
        return ToolEnv(self.inner.build(row), Toolbox(self.sources, row))

    def build_with_memory(self, row: Row, memory: Memory) -> ToolEnv:
        """The same, the inner episode with memory."""
        return ToolEnv(build_episode(self.inner, row, memory), Toolbox(self.sources, row))


def add_tools(
    inner: EnvBuilder, environment: Environment, folders: Sequence[Path] = ()
) -> EnvBuilder:
    """``inner`` with the tools that a manifest's environment names; as it is without any. Raises SpecError."""
    sources = build_sources(
        environment.tools,
        folders,
        environment.mcp_servers,
        environment.http,
        environment.tool_plugins,
    )
    return ToolBuilder(inner=inner, sources=sources) if sources else inner


@runtime_checkable
class Tooled(Protocol):
    """An environment whose tools are known before any episode."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the policy sees, by name."""
        ...


def tools_of(environment: EnvBuilder) -> tuple[ToolSpec, ...]:
    """The tools that the manifest gives to an environment, or that a builtin has."""
    return environment.tools if isinstance(environment, Tooled) else ()


def _without_tools(said: State) -> State:
    if said.tools:
        raise SpecError(
            f"environment.tools: the environment has tools of its own ({', '.join(one.name for one in said.tools)}):"
            " leave environment.tools out, or let the environment have none"
        )
    return replace(said, tools=None)

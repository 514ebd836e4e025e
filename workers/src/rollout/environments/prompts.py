"""How long the prompts are that episodes begin with: each row's environment is started, rendered and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from rollout.environments.agents.environment import AgentBuilder
from rollout.environments.plugin import PluginBuilder
from rollout.environments.with_tools import ToolBuilder
from rollout.errors import DataError
from rollout.rendering.choices import choice_text, render_before, render_choices
from rollout.seams import DataSource, EnvBuilder, Renderer
from rollout.turns import State
from rollout.types import Row

ROWS_AT_ONCE = 1024


def is_measured(source: DataSource, environment: EnvBuilder, rows_max: int) -> bool:
    """Whether every prompt may be looked at: of rows that are few, and not of agents, each of which is a program to start.

    A class of a user's or of an adapter says that its episodes are such programs by ``starts_programs = True``, a plugin that it
    is in another container.
    """
    inner = environment.inner if isinstance(environment, ToolBuilder) else environment
    made = inner.made if isinstance(inner, PluginBuilder) else inner
    agents = isinstance(made, AgentBuilder) or getattr(made, "starts_programs", False)
    return len(source) <= rows_max and not agents


def measure_prompts(
    role: str, source: DataSource, environment: EnvBuilder, renderer: Renderer
) -> Iterator[int]:
    """Tokens of each row's first prompt, in the data's order. Raises DataError naming the row and its role."""
    for start in range(0, len(source), ROWS_AT_ONCE):
        indices = range(start, min(start + ROWS_AT_ONCE, len(source)))
        opened = asyncio.run(_first_states(role, start, environment, source.rows(indices)))
        for index, state in zip(indices, opened, strict=True):
            try:
                yield _length(state, renderer)
            except DataError as error:
                raise DataError(f"row {index} of {role!r}: {error}") from error


def _length(state: State, renderer: Renderer) -> int:
    """Raises DataError, also for choices that have no tokens of their own."""
    if not state.choices:
        return len(renderer.render_prompt(state.messages, state.tools or ()))
    text = choice_text(state.messages)
    render_choices(renderer, text, state.choices)
    return len(render_before(renderer, text))


async def _first_states(
    role: str, start: int, environment: EnvBuilder, rows: Sequence[Row]
) -> list[State]:
    """What the episodes of some rows, from ``start`` on, begin with, one after the other; each is closed."""
    states = []
    for index, row in enumerate(rows, start):
        try:
            states.append(await first_state(environment, row))
        except DataError as error:
            raise DataError(f"row {index} of {role!r}: {error}") from error
    return states


async def first_state(environment: EnvBuilder, row: Row) -> State:
    """What the policy first sees of a row; its episode is closed."""
    episode = environment.build(row)
    try:
        return await episode.start()
    finally:
        await episode.close()

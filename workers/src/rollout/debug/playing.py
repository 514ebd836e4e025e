"""One episode of an environment, played by whoever answers: no model, no tokens, no run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from rollout.data.build import build_source
from rollout.data.subset import Part
from rollout.environments.build import BUILTINS, build_environment
from rollout.errors import RolloutError, SpecError
from rollout.plugins.user_code import refusing_failures
from rollout.rendering.tool_calls import parse_reply
from rollout.seams import Env, EnvBuilder
from rollout.turns import Action, Budgets, Ending, State, ToolSpec
from rollout.types import Message, Row, ToolCall
from rollout_api.checks.tools import TOOLS, is_function
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.environment import Environment

T = TypeVar("T")
TURN_LIMIT = "turn-limit"
CLOSE_SECONDS_MAX = 10.0
Answer = Callable[[State], str | None]
"""What is replied to a state; None: nobody answers any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEnvironment:
    """What is played: a builtin's name or ``module.Class``, with parameters, tools and, where it has none, rows."""

    environment: str
    parameters: tuple[tuple[str, str], ...] = ()
    tools: tuple[str, ...] = ()
    data: Path | None = None
    split: Part = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """One answer of the environment. ``calls``: those of the reply before it; ``turn`` 0 is the beginning."""

    turn: int
    calls: tuple[ToolCall, ...]
    said: State | Ending


def open_chosen(chosen: PlayedEnvironment, row: int) -> tuple[EnvBuilder, Row]:
    """The environment, and the row of that number. Raises SpecError and DataError."""
    builder = build_environment(_environment(chosen), folders=[Path()])
    data = None
    if chosen.data is not None:
        data = Data.model_validate({"jsonl": {"uri": str(chosen.data)}})
    own = builder.source(chosen.split, 0)
    if own is not None and data is not None:
        raise SpecError(
            f"--data: environment {chosen.environment} brings its own rows; leave it out"
        )
    if own is None and data is None:
        raise SpecError(
            f"environment {chosen.environment} brings no rows of its own; give --data FILE.jsonl"
        )
    source = own if own is not None else build_source(data, part=chosen.split)
    if not 0 <= row < len(source):
        raise SpecError(
            f"--row {row}: split {chosen.split} has {len(source)} rows, counted from 0; take one of them"
        )
    return builder, source.rows([row])[0]


def _environment(chosen: PlayedEnvironment) -> Environment:
    parameters = [{"name": name, "value": value} for name, value in chosen.parameters]
    if wrong := [one for one in chosen.tools if one not in TOOLS and not is_function(one)]:
        raise SpecError(
            f"--tool {wrong[0]}: no such tool; there are {', '.join(TOOLS)}, and module.function"
        )
    name = chosen.environment
    if name in BUILTINS:
        made: dict[str, object] = {"builtin": {"name": name, "parameters": parameters}}
    elif is_function(name):
        module, _, class_name = name.rpartition(".")
        python = {"module": module, "className": class_name, "parameters": parameters}
        made = {"python": python}
    else:
        raise SpecError(
            f"no environment {name!r}; there are {', '.join(sorted(BUILTINS))}, and module.Class of your code"
        )
    try:
        return Environment.model_validate({**made, "tools": list(chosen.tools)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(f"environment {name}: {where}: {first['msg']}") from error


def play(builder: EnvBuilder, row: Row, answer: Answer) -> Iterator[PlayedStep]:
    """The episode of one row, step by step, until it ends, nobody answers, or after the turns that an episode may have.

    The environment is closed whatever happens. Raises SpecError naming the turn and the user's line for what it raised.
    """
    with asyncio.Runner() as runner:
        episode = builder.build(row)
        try:
            yield from _steps(runner, episode, answer)
        finally:
            with refusing_failures("the environment's close failed"):
                runner.run(asyncio.wait_for(episode.close(), CLOSE_SECONDS_MAX))


def _steps(runner: asyncio.Runner, episode: Env, answer: Answer) -> Iterator[PlayedStep]:
    said: State | Ending = _heard(runner, episode.start, 0)
    yield PlayedStep(turn=0, calls=(), said=said)
    tools = said.tools or () if isinstance(said, State) else ()
    for turn in range(Budgets().turns):
        if isinstance(said, Ending) or (reply := answer(said)) is None:
            return
        action = _action(reply, tools, turn)
        said = _heard(runner, lambda action=action: episode.step(action), turn + 1)
        yield PlayedStep(turn=turn + 1, calls=action.calls, said=said)
    if isinstance(said, State):
        yield PlayedStep(turn=Budgets().turns, calls=(), said=Ending(kind=TURN_LIMIT))


def _heard(runner: asyncio.Runner, call: Callable[[], Coroutine[Any, Any, T]], turn: int) -> T:
    try:
        return runner.run(call())
    except RolloutError:
        raise
    except Exception:
        with refusing_failures(f"the environment failed in turn {turn}"):
            raise


def _action(reply: str, tools: tuple[ToolSpec, ...], turn: int) -> Action:
    parts = parse_reply(reply, "hermes", tools, turn)
    return Action(message=Message(role="assistant", content=parts), text=reply, turn=turn)

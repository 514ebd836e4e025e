"""``rollout env``: which environments there are, and one episode of one played in the terminal."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
)
from rollout.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollout.debug.playing import PlayedStep
    from rollout.turns import Ending, State

app = typer.Typer(
    help="The environments that there are, and one episode of one played here.",
    no_args_is_help=True,
)


class Split(StrEnum):
    """Which rows."""

    train = "train"
    selection = "selection"
    report = "report"


@app.command("list")
def list_environments(output: OutputOption = OutputFormat.text) -> None:
    """Every builtin environment, with its parameters and their defaults."""
    from rollout.common.parameters import known_parameters
    from rollout.environments.build import BUILTINS, EXPLAINED, PARAMETERS

    found = [
        {
            "name": name,
            "parameters": known_parameters(PARAMETERS[name]),
            "what": EXPLAINED[name],
        }
        for name in sorted(BUILTINS)
    ]
    if output is OutputFormat.json:
        print_json(found)
        return
    for one in found:
        print_line(f"{one['name']}: {one['what']}")
        for name, default in one["parameters"].items():
            print_line(f"  {name}={default}")


@app.command("try")
def try_environment(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENV", help="A builtin environment, or module.Class found from here."
        ),
    ],
    *,
    row: Annotated[
        int, typer.Option("--row", min=0, help="Which row of the split, from 0 on.")
    ] = 0,
    split: Annotated[Split, typer.Option("--split", help="Of which split.")] = Split.train,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A JSONL file of rows, for an environment that has none."),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option("--tool", help="A tool, as in train.environment.tools; repeatable."),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", help="Of the environment: digits=4; repeatable."),
    ] = None,
) -> None:
    """Play one episode as the policy: each line that you write is a reply, the end of input leaves it."""
    from rollout.debug.playing import PlayedEnvironment, open_chosen, play

    chosen = PlayedEnvironment(
        environment=environment,
        parameters=tuple(_parameter(one) for one in parameters or ()),
        tools=tuple(tools or ()),
        data=data,
        split=split.value,
    )
    builder, asked = open_chosen(chosen, row)
    replies: list[str] = []
    total, over = 0.0, False
    for step in play(builder, asked, lambda _: _read(replies)):
        total += step.said.turn_reward or 0.0
        over = _show(step)
    _show_score(total, asked, replies, over=over)


def _parameter(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise SpecError(f"--parameter {given}: expected NAME=VALUE")
    return name, value


def _read(replies: list[str]) -> str | None:
    """The next line of standard input; None at its end."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        return None
    replies.append(line.rstrip("\r\n"))
    return replies[-1]


def _show(step: PlayedStep) -> bool:
    """Print what was heard; whether the episode is over."""
    from rollout.turns import State

    for call in step.calls:
        print_line(f"call {call.name} {call.arguments_text} ({call.status})")
    said = step.said
    if isinstance(said, State):
        _show_state(said)
    _show_numbers(step.turn, said)
    if isinstance(said, State):
        return False
    detail = f": {said.detail}" if said.detail else ""
    print_line(f"ended {said.kind} (owner {said.owner}){detail}")
    return True


def _show_state(said: State) -> None:
    from rollout.types import ToolResult

    for tool in said.tools or ():
        print_line(f"tool {tool.name}({', '.join(tool.parameters.get('properties', {}))})")
        print_line(f"  {tool.description}")
    for message in said.messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        for one in results:
            print_line(f"result {one.name}: {one.text}")
        if not results:
            print_line(f"{message.role}: {message.text}")


def _show_numbers(turn: int, said: State | Ending) -> None:
    if said.turn_reward is not None:
        print_line(f"turn {turn} reward {said.turn_reward:g}")
    if said.signals:
        listed = ", ".join(f"{name} {value:g}" for name, value in sorted(said.signals.items()))
        print_line(f"turn {turn} signals {listed}")


def _show_score(total: float, row: Mapping[str, object], replies: list[str], *, over: bool) -> None:
    """What the builtin rewards give the episode."""
    if not over:
        print_note("the episode was left before its end: it has no reward")
        return
    print_line(f"reward environment {total:g}")
    if "answer" in row:
        right = bool(replies) and replies[-1].strip() == str(row["answer"]).strip()
        print_line(f"reward exact-match {int(right)} (answer {row['answer']})")

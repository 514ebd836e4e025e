"""``rollout env``: which environments there are, and one episode of one played in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.env.showing import show_end, show_step
from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
)
from rollout.common.parameters import read_pair
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.debug.playing.chosen import PlayedAgent
    from rollout.debug.playing.episode import Player

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="Let this model play: rollout://..., file:///folder, hf://owner/name."
    ),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=1,
        help="Of --model: longest reply; default: 512, or a quarter of its context.",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", min=0, help="Of --model: default: 1, as in training; 0: greedy."),
]
EnvironmentArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="A builtin environment, module.Class found from here, a plugin's folder, or agent.",
    ),
]
CommandOption = Annotated[
    str | None, typer.Option("--command", help="Of agent: what is run, 'python clerk.py'.")
]
VerifierOption = Annotated[
    str | None, typer.Option("--verifier", help="Of agent: what judges what it left.")
]
VerifierFileOption = Annotated[
    list[str] | None,
    typer.Option("--verifier-file", help="A file that --verifier finds in /tests; repeatable."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Of --model: root of its randomness; default: 0.")
]

app = typer.Typer(
    help="The environments that there are, and one episode of one played here.",
    no_args_is_help=True,
)

FENCE = "```"


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
    environment: EnvironmentArgument,
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
    servers: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp-server", help="A server of tools: 'shelf=python shelf_server.py'; repeatable."
        ),
    ] = None,
    http_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--http-host", help="Gives the tool http, for this host or host:port; repeatable."
        ),
    ] = None,
    command: CommandOption = None,
    verifier: VerifierOption = None,
    verifier_files: VerifierFileOption = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", help="Of the environment: digits=4; repeatable."),
    ] = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
) -> None:
    """Play one episode as the policy, or watch a model play it: each line that you write is a reply, the end of input leaves it."""
    from rollout.debug.playing.chosen import PlayedEnvironment, open_chosen
    from rollout.debug.playing.episode import play_episode

    chosen = PlayedEnvironment(
        environment=environment,
        parameters=tuple(read_pair(one, "--parameter") for one in parameters or ()),
        tools=tuple(tools or ()),
        servers=tuple(read_pair(one, "--mcp-server", "COMMAND") for one in servers or ()),
        http_hosts=tuple(http_hosts or ()),
        agent=_agent(command, verifier, verifier_files or ()),
        data=data,
        split=split.value,
    )
    builder, asked = open_chosen(chosen, row)
    player = _player(model, _said(max_tokens=max_tokens, temperature=temperature, seed=seed))
    told = partial(show_step, shows_reply=model is not None)
    show_end(play_episode(builder, asked, player, told), asked, shows_reply=model is not None)


def _agent(command: str | None, verifier: str | None, files: Sequence[str]) -> PlayedAgent | None:
    """The agent that is played, if one is. Raises SpecError for what judges none."""
    from rollout.debug.playing.chosen import PlayedAgent

    if command is not None:
        return PlayedAgent(command=command, verifier=verifier, verifier_files=tuple(files))
    if verifier is not None or files:
        raise SpecError("--verifier judges an agent: give --command")
    return None


def _said(**options: float | None) -> dict[str, float]:
    return {name: value for name, value in options.items() if value is not None}


def _player(model: str | None, sampling: dict[str, Any]) -> Player:
    """Who plays. Raises SpecError beside an option of a model's where none is given."""
    if model is None:
        from rollout.debug.playing.person import person

        if sampling:
            raise SpecError(
                f"--{next(iter(sampling)).replace('_', '-')} says how a model is sampled: give --model"
            )
        return person(_read)
    from rollout.debug.playing.model import open_model

    return open_model(model, **sampling)


def _read() -> str | None:
    """The next line of standard input, from a line of a fence on up to its end all of them; None at the end of input."""
    line = _read_line("> ")
    if line is None or not line.startswith(FENCE):
        return line
    lines = [line]
    while (line := _read_line(". ")) is not None:
        lines.append(line)
        if line.rstrip() == FENCE:
            break
    return "\n".join(lines)


def _read_line(prompt: str) -> str | None:
    if sys.stdin.isatty():
        sys.stderr.write(prompt)
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None

"""Which environment is played, and with which row: from names in the terminal to what builds its episode."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rollout.data.build import build_source
from rollout.data.subset import Part
from rollout.environments.build import BUILTINS, build_environment
from rollout.errors import SpecError
from rollout.plugins.sidecar.manifest import FILE
from rollout.seams import EnvBuilder
from rollout.types import Row
from rollout_api.checks.environment.tools import TOOLS, is_function
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.environment import Environment

AGENT = "agent"
"""Plays a program that owns its loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedAgent:
    """An agent as written in the terminal: two command lines, and files that the verifier finds."""

    command: str
    verifier: str | None = None
    verifier_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEnvironment:
    """What is played: a builtin's name, ``module.Class`` or a plugin's folder below this one, with parameters, tools and, where it has none, rows.

    ``servers`` are MCP servers by name and command; words of it that are files or folders here are what they find.
    """

    environment: str
    parameters: tuple[tuple[str, str], ...] = ()
    tools: tuple[str, ...] = ()
    servers: tuple[tuple[str, str], ...] = ()
    http_hosts: tuple[str, ...] = ()
    agent: PlayedAgent | None = None
    data: Path | None = None
    split: Part = "train"


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
    if wrong := [one for one in chosen.tools if one not in TOOLS and not is_function(one)]:
        raise SpecError(
            f"--tool {wrong[0]}: no such tool; there are {', '.join(TOOLS)}, and module.function"
        )
    if chosen.agent is not None and (chosen.tools or chosen.servers or chosen.http_hosts):
        raise SpecError("--command: an agent brings its own tools; leave --tool and its like out")
    made = _played(chosen)
    made |= {"tools": list(chosen.tools), "mcpServers": [_server(*one) for one in chosen.servers]}
    if chosen.http_hosts:
        made["http"] = {"hosts": list(chosen.http_hosts)}
    try:
        return Environment.model_validate(made)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(f"environment {chosen.environment}: {where}: {first['msg']}") from error


def _played(chosen: PlayedEnvironment) -> dict[str, object]:
    """The member of ``train.environment`` that a name stands for. Raises SpecError for one that it does not know."""
    name = chosen.environment
    parameters = [{"name": name, "value": value} for name, value in chosen.parameters]
    if (name == AGENT) != (chosen.agent is not None):
        raise SpecError("an agent is played as: rollout env try agent --command COMMAND")
    if chosen.agent is not None:
        return {"agent": _agent(chosen.agent)}
    if name in BUILTINS:
        return {"builtin": {"name": name, "parameters": parameters}}
    if (Path(name) / FILE).is_file():
        return {"plugin": {"path": name, "parameters": parameters}}
    if is_function(name):
        module, _, class_name = name.rpartition(".")
        python = {"module": module, "className": class_name, "parameters": parameters}
        return {"python": python}
    raise SpecError(
        f"no environment {name!r}; there are {', '.join(sorted(BUILTINS))}, module.Class of your code, and folders of plugins"
    )


def _agent(agent: PlayedAgent) -> dict[str, object]:
    made = _program(agent.command, f"--command {agent.command}")
    if agent.verifier is not None:
        judge = _program(agent.verifier, f"--verifier {agent.verifier}")
        made["verifier"] = {**judge, "files": list(agent.verifier_files)}
    return made


def _server(name: str, written: str) -> dict[str, object]:
    return {"name": name, **_program(written, f"--mcp-server {name}={written}")}


def _program(written: str, what: str) -> dict[str, object]:
    """A command line, and the words of it that are files or folders here."""
    try:
        command = shlex.split(written)
    except ValueError as error:
        raise SpecError(f"{what}: {error}") from error
    here = [word for word in command[1:] if not Path(word).is_absolute() and Path(word).exists()]
    return {"command": command, "files": here}

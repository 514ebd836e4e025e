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
    parameters = [{"name": name, "value": value} for name, value in chosen.parameters]
    if wrong := [one for one in chosen.tools if one not in TOOLS and not is_function(one)]:
        raise SpecError(
            f"--tool {wrong[0]}: no such tool; there are {', '.join(TOOLS)}, and module.function"
        )
    name = chosen.environment
    if name in BUILTINS:
        made: dict[str, object] = {"builtin": {"name": name, "parameters": parameters}}
    elif (Path(name) / FILE).is_file():
        made = {"plugin": {"path": name, "parameters": parameters}}
    elif is_function(name):
        module, _, class_name = name.rpartition(".")
        python = {"module": module, "className": class_name, "parameters": parameters}
        made = {"python": python}
    else:
        raise SpecError(
            f"no environment {name!r}; there are {', '.join(sorted(BUILTINS))}, module.Class of your code, and folders of plugins"
        )
    made |= {"tools": list(chosen.tools), "mcpServers": [_server(*one) for one in chosen.servers]}
    if chosen.http_hosts:
        made["http"] = {"hosts": list(chosen.http_hosts)}
    try:
        return Environment.model_validate(made)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(f"environment {name}: {where}: {first['msg']}") from error


def _server(name: str, written: str) -> dict[str, object]:
    try:
        command = shlex.split(written)
    except ValueError as error:
        raise SpecError(f"--mcp-server {name}={written}: {error}") from error
    here = [word for word in command[1:] if not Path(word).is_absolute() and Path(word).exists()]
    return {"name": name, "command": command, "files": here}

"""The tools of an environment: those that rollout ships, typed functions of the user's own code, those of plugins and of MCP servers.

``module.function`` is a user's; it is imported here, and what it raises is answered to the policy. Names that nobody
knows are refused, as are two tools that the policy could not tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollout.errors import SpecError
from rollout.plugins.user_code import load_object
from rollout.tools.calculator import calculator
from rollout.tools.code import CodeSource
from rollout.tools.contract import Tool, ToolSource, ToolTraits
from rollout.tools.functions import FunctionTool
from rollout.tools.sandbox.chosen import program_maker, sandbox_maker
from rollout.tools.search import SearchSource
from rollout.tools.server_files import read_files
from rollout.turns import ToolSpec
from rollout.types import Row
from rollout_api.checks.environment.tools import SANDBOXED, TOOLS, is_function
from rollout_api.v1alpha1.environment import HttpAccess, McpServer, ToolPlugin
from rollout_api.v1alpha1.training.train import Train

if TYPE_CHECKING:
    from rollout.plugins.sidecar.kinds.tool import PluginToolSource
    from rollout.tools.mcp.source import McpSource


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """One function, the same for every row."""

    function: Callable[..., object]
    traits: ToolTraits

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy will see."""
        return tuple(tool.spec for tool in self.open({}))

    def open(self, row: Row) -> tuple[Tool, ...]:
        """The tool of one episode."""
        del row
        return (FunctionTool(self.function, traits=self.traits),)


def build_sources(
    names: Sequence[str],
    folders: Sequence[Path] = (),
    servers: Sequence[McpServer] = (),
    http: HttpAccess | None = None,
    plugins: Sequence[ToolPlugin] = (),
) -> tuple[ToolSource, ...]:
    """The sources of ``names``, ``http``, ``plugins`` and ``servers``, in order; ``folders`` are where user code lies. Raises SpecError.

    No plugin or server is started: it is asked for its tools where somebody first looks at them.
    """
    sandboxed = tuple(name for name in names if name in SANDBOXED)
    sources: list[ToolSource] = [CodeSource(sandboxed, sandbox_maker)] if sandboxed else []
    sources += [_source(name, folders) for name in names if name not in SANDBOXED]
    if http is not None:
        from rollout.tools.http.source import HttpSource

        sources.append(HttpSource(http.hosts))
    plugged = _plugins(plugins, folders)
    owners = [*(one.plugin.manifest.name for one in plugged), *(one.name for one in servers)]
    _require_apart(sources, owners)
    return (*sources, *plugged, *build_servers(servers, folders))


def tool_digests(specs: Sequence[ToolSpec]) -> dict[str, str]:
    """Digest of what the policy sees of each tool, by its name."""
    return {spec.name: spec.digest for spec in specs}


def require_planned(planned: Mapping[str, str], specs: Sequence[ToolSpec]) -> None:
    """Raise SpecError where the policy would see other tools than the run was planned with."""
    found = tool_digests(specs)
    if changed := sorted(
        name for name in {*planned, *found} if planned.get(name) != found.get(name)
    ):
        raise SpecError(
            f"environment.tools: {', '.join(changed)} is not what the run was planned with (name, description or"
            " arguments changed): put it back, or start a new run"
        )


def _source(name: str, folders: Sequence[Path]) -> ToolSource:
    if name == "calculator":
        return FunctionSource(function=calculator, traits=ToolTraits(pure=True))
    if name == "search":
        return SearchSource()
    if not is_function(name):
        raise SpecError(f"no tool {name!r}; there are {', '.join(TOOLS)}, and module.function")
    module, _, function = name.rpartition(".")
    found = load_object(function, module=module, folders=folders)
    if not callable(found):
        raise SpecError(f"tool {name}: expected a function, got {type(found).__name__}")
    return FunctionSource(function=found, traits=ToolTraits())


def _plugins(plugins: Sequence[ToolPlugin], folders: Sequence[Path]) -> list[PluginToolSource]:
    if not plugins:
        return []
    from rollout.plugins.sidecar.named import open_plugin, parameters_of

    named = [f"environment.toolPlugins: {one.path or one.label}" for one in plugins]
    opened = [
        open_plugin(one, "tool", folders, what) for one, what in zip(plugins, named, strict=True)
    ]
    from rollout.plugins.sidecar.kinds.tool import PluginToolSource, declared_tools

    declared = [
        () if one.container is None else declared_tools(one.container, what)
        for one, what in zip(plugins, named, strict=True)
    ]
    given = [parameters_of(one) for one in plugins]
    return [PluginToolSource(*one) for one in zip(opened, given, declared, strict=True)]


def build_servers(servers: Sequence[McpServer], folders: Sequence[Path]) -> tuple[McpSource, ...]:
    """The sources of MCP servers, none of them started; ``folders`` are where their files lie. Raises SpecError."""
    if not servers:
        return ()
    try:
        from rollout.tools.mcp.source import McpSource, ServerProgram
    except ImportError as error:
        raise SpecError(
            f"environment.mcpServers needs the package mcp, which is not here ({error}): pip install"
            " 'rollout-rl[mcp]'"
        ) from error
    programs = (
        ServerProgram(name=one.name, command=one.command, files=_files_of(one, folders))
        for one in servers
    )
    return tuple(McpSource(program, program_maker) for program in programs)


def _files_of(server: McpServer, folders: Sequence[Path]) -> tuple[tuple[str, bytes], ...]:
    return read_files(server.files, folders, f"environment.mcpServers: {server.name}")


def know_servers(
    listed: Mapping[str, tuple[ToolSpec, ...]], train: Train | None, folders: Sequence[Path]
) -> None:
    """Servers that another process has asked for their tools are not asked again in this one."""
    environment = None if train is None else train.environment
    servers = environment.mcp_servers if environment is not None and listed else ()
    for source in build_servers(servers, folders):
        source.know(listed[source.program.name])


def _require_apart(sources: Sequence[ToolSource], owners: Sequence[str]) -> None:
    """``owners``: names of plugins and servers, which stand before those of their tools."""
    seen: set[str] = set()
    if twice := next((one for one in owners if owners.count(one) > 1), None):
        raise SpecError(
            f"environment: two of toolPlugins and mcpServers are called {twice!r}: rename one of them"
        )
    for spec in (spec for source in sources for spec in source.specs):
        if spec.name in seen:
            raise SpecError(f"environment.tools: two tools are called {spec.name!r}; rename one")
        if spec.name.partition("__")[0] in owners and "__" in spec.name:
            raise SpecError(
                f"environment.tools: {spec.name!r} is called as a tool of a plugin or MCP server; rename one of them"
            )
        seen.add(spec.name)

"""The tools of a plugin: asked for once a process, called in a process of its own, which knows the episodes apart.

A call that is not answered in its time is told to the policy, as one of a function that hangs is. A process that dies is
infrastructure; a failure of a task's, a status or what breaks the contract is the plugin's, and stops the run.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rollout.errors import PluginError, SpecError
from rollout.plugins.sidecar.client import (
    CALL,
    LEAVE,
    LIST,
    SHORT_SECONDS,
    PluginClient,
    PluginTimeout,
)
from rollout.plugins.sidecar.container import Opened
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.manifest import PluginFolder
from rollout.plugins.sidecar.wire import failure_of, heard_numbers, heard_tool, row_json
from rollout.tools.contract import Tool, ToolAnswer, ToolTraits
from rollout.tools.foreign import PARTED, TOOLS_MAX, foreign_spec, in_order
from rollout.turns import ToolSpec
from rollout.types import Row
from rollout_api.v1alpha1.environment import ToolContainer

CALL_SECONDS = 30.0
QUEUE_SECONDS = 60.0
"""For calls of other episodes that the plugin answers first (``concurrency``)."""
_listed: dict[tuple[str, str, str], tuple[ToolSpec, ...]] = {}
"""Of this process, by folder, digest and parameters: a run has few plugins."""


class PluginToolSource:
    """The tools of one plugin, which is started where somebody first looks at them.

    ``declared``: what a run says that they are, where not every process that wants to know may ask.
    """

    def __init__(
        self,
        plugin: Opened,
        parameters: Mapping[str, str],
        declared: tuple[ToolSpec, ...] = (),
    ) -> None:
        self.plugin = plugin
        self.client = PluginClient(plugin, parameters)
        self._declared = declared
        place = str(plugin.folder) if isinstance(plugin, PluginFolder) else plugin.socket
        self._key = (place, plugin.digest, json.dumps(dict(parameters)))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy will see. Raises SpecError for a plugin that does not come up, and for tools that no prompt could have."""
        return self._declared or self._listed()

    def require_declared(self) -> None:
        """Raise SpecError where the plugin has other tools than the run says; nothing is asked where the run says none."""
        if not self._declared:
            return
        said = {one.name: one.digest for one in self._declared}
        found = {one.name: one.digest for one in self._listed()}
        if wrong := sorted({name for name, _ in said.items() ^ found.items()}):
            raise SpecError(
                f"plugin {self.plugin.title}: {', '.join(wrong)} is not what toolPlugins says of its tools (name, description"
                " or parameters): write what rollout plugins show FOLDER --tools prints, or name the image that has them"
            )

    def _listed(self) -> tuple[ToolSpec, ...]:
        if self._key not in _listed:
            with ThreadPoolExecutor(1, "plugin") as executor:  # whoever asks may be in a loop
                _listed[self._key] = executor.submit(self._list).result()
        return _listed[self._key]

    def _list(self) -> tuple[ToolSpec, ...]:
        said = self.client.ask(LIST, contract.ListRequest(), SHORT_SECONDS)
        return heard_tools(self.plugin, said)

    def open(self, row: Row) -> tuple[Tool, ...]:
        """The tools of one episode; nothing is asked before the first call."""
        episode = PluginToolEpisode(self.client, row)
        seconds = CALL_SECONDS + QUEUE_SECONDS + self.plugin.manifest.start_seconds + SHORT_SECONDS
        return tuple(PluginTool(spec, episode, seconds) for spec in self.specs)


class PluginToolEpisode:
    """What the tools of one episode share."""

    def __init__(self, client: PluginClient, row: Row) -> None:
        self._client = client
        self._row_json = row_json(row)
        self._name = uuid.uuid4().hex
        self._is_known = False

    async def call(self, name: str, arguments: Mapping[str, Any], key: str) -> ToolAnswer:
        """One call. Raises PluginError, InfrastructureError."""
        self._is_known = True
        request = contract.CallRequest(
            episode=self._name,
            call_id=key,
            name=name,
            arguments_json=json.dumps(dict(arguments)),
            row_json=self._row_json,
        )
        try:
            answer = await self._client.ask_soon(CALL, request, CALL_SECONDS, QUEUE_SECONDS)
        except PluginTimeout:
            text = f"error: no answer within {CALL_SECONDS:g} s"
            return ToolAnswer(text=text, is_error=True, signals={"tool_timeouts": 1})
        return heard_answer(self._client.plugin, answer)

    async def close(self) -> None:
        """Tell the plugin that the episode is over, where it has heard of it; idempotent."""
        if not self._is_known:
            return
        self._is_known = False
        request = contract.CloseRequest(episode=self._name)
        await self._client.ask_soon(LEAVE, request, SHORT_SECONDS)


class PluginTool:
    """One tool in one episode. ``seconds`` bound a call with all that it may wait for."""

    def __init__(self, spec: ToolSpec, episode: PluginToolEpisode, seconds: float) -> None:
        self.spec = spec
        self.traits = ToolTraits(seconds=seconds)
        self._episode = episode

    async def call(self, arguments: Mapping[str, Any], key: str) -> ToolAnswer:
        """Ask the plugin. Raises PluginError, InfrastructureError."""
        return await self._episode.call(self.spec.name.partition(PARTED)[2], arguments, key)

    async def close(self) -> None:
        """End the episode."""
        await self._episode.close()


def declared_tools(container: ToolContainer, what: str) -> tuple[ToolSpec, ...]:
    """The tools that a run says a plugin has, as the policy sees them. Raises SpecError for what no prompt could have."""
    try:
        return in_order(
            [
                foreign_spec(container.name, one.name, one.description, json.loads(one.parameters))
                for one in container.tools
            ]
        )
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{what}: {error}") from error


def read_tools(plugin: PluginFolder, given: Mapping[str, str]) -> list[dict[str, str]]:
    """The tools of a plugin as a run declares them. Raises SpecError for a plugin of another kind, and as ``PluginToolSource.specs``."""
    if plugin.manifest.kind != "tool":
        raise SpecError(
            f"plugin {plugin.title} is of kind {plugin.manifest.kind}, and has no tools"
        )
    source = PluginToolSource(plugin, plugin.configure(given))
    try:
        return [
            {
                "name": one.name.partition(PARTED)[2],
                "description": one.description,
                "parameters": json.dumps(dict(one.parameters)),
            }
            for one in source.specs
        ]
    finally:
        source.client.close()


def heard_tools(plugin: Opened, said: contract.ListResponse) -> tuple[ToolSpec, ...]:
    """The tools as the policy sees them, by name. Raises SpecError for what no prompt could have."""
    if len(said.tools) > TOOLS_MAX:
        raise SpecError(
            f"plugin {plugin.title}: it has {len(said.tools)} tools, expected 1 to {TOOLS_MAX}"
        )
    try:
        own = [heard_tool(one) for one in said.tools]
        owner = plugin.manifest.name
        return in_order(
            [foreign_spec(owner, one.name, one.description, one.parameters) for one in own]
        )
    except (ValueError, RecursionError, PluginError) as error:
        raise SpecError(f"plugin {plugin.title}: {error}") from error


def heard_answer(plugin: Opened, answer: contract.CallResponse) -> ToolAnswer:
    """What a call gave; its numbers behind the plugin's name. Raises PluginError, InfrastructureError."""
    if answer.HasField("failure"):
        raise failure_of(answer.failure)
    own = heard_numbers(answer.signals, "signals")
    signals = {f"{plugin.manifest.name}/{name}": value for name, value in own.items()}
    return ToolAnswer(text=answer.text, is_error=answer.is_error, signals=signals)

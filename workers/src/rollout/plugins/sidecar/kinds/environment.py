"""The environment of a plugin: episodes that are played in a process of its own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from rollout.errors import PluginError
from rollout.plugins.sidecar.client import CLOSE, SHORT_SECONDS, START, STEP, PluginClient
from rollout.plugins.sidecar.container import Opened, PluginImage
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.wire import heard_turn, row_json, told_message
from rollout.seams import DataSource
from rollout.turns import Action, Ending, State
from rollout.types import Row

CALL_SECONDS = 600.0
"""Longer than the deadlines of an episode's loop, which are what ends a call."""


class SidecarEpisode:
    """One episode."""

    def __init__(self, client: PluginClient, row: Row) -> None:
        self._client, self._row = client, row
        self._episode = uuid.uuid4().hex
        self._is_open = False

    async def start(self) -> State:
        """The plugin's first state. Raises PluginError, InfrastructureError."""
        self._is_open = True
        request = contract.StartRequest(episode=self._episode, row_json=row_json(self._row))
        turn = await self._client.ask_soon(START, request, CALL_SECONDS)
        said = heard_turn(turn, first=True)
        if isinstance(said, Ending):
            raise PluginError(f"an episode ended at its start ({said.kind}): expected a state")
        return said

    async def step(self, action: Action) -> State | Ending:
        """What the plugin says of a reply. Raises PluginError, InfrastructureError."""
        request = contract.StepRequest(
            episode=self._episode,
            turn=action.turn,
            text=action.text,
            message=told_message(action.message),
        )
        turn = await self._client.ask_soon(STEP, request, CALL_SECONDS)
        return heard_turn(turn, first=False)

    async def close(self) -> None:
        """Tell the plugin that the episode is over; one that has died knows."""
        if not self._is_open:
            return
        self._is_open = False
        request = contract.CloseRequest(episode=self._episode)
        await self._client.ask_soon(CLOSE, request, SHORT_SECONDS)


class SidecarBuilder:
    """Builds episodes of one plugin, which is started at the first one; the rows are the run's."""

    def __init__(self, plugin: Opened, parameters: Mapping[str, str]) -> None:
        self.client = PluginClient(plugin, parameters)
        # a plugin's container stands beside actors only: whoever plans a run starts no episode of it
        self.starts_programs = isinstance(plugin, PluginImage)

    def source(self, split: str, seed: int) -> DataSource | None:
        """No rows of its own."""
        del split, seed
        return None

    def build(self, row: Row) -> SidecarEpisode:
        """The episode of one row."""
        return SidecarEpisode(self.client, row)

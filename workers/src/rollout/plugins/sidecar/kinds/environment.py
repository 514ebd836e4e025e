"""The environment of a plugin: episodes that are played in a process of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from functools import partial

from google.protobuf.message import Message as Frame

from rollout.environments.memory import EpisodeMemory
from rollout.environments.threads import THREADS
from rollout.errors import PluginError
from rollout.plugins.sidecar.client import (
    CLOSE,
    CONTINUE,
    SHORT_SECONDS,
    START,
    STEP,
    PluginCall,
    PluginClient,
)
from rollout.plugins.sidecar.container import Opened, PluginImage
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.memory import MemoryDesk
from rollout.plugins.sidecar.wire import heard_turn, row_json, told_message
from rollout.seams import DataSource, Memory
from rollout.turns import Action, Ending, State
from rollout.types import Row

CALL_SECONDS = 600.0
"""Longer than the deadlines of an episode's loop, which are what ends a call."""


class SidecarEpisode:
    """One episode, with the memory that it may read and write."""

    def __init__(self, client: PluginClient, row: Row, memory: Memory) -> None:
        self._client, self._row = client, row
        self._desk = MemoryDesk(memory)
        self._episode = uuid.uuid4().hex
        self._is_open = False

    async def start(self) -> State:
        """The plugin's first state. Raises PluginError, InfrastructureError."""
        self._is_open = True
        request = contract.StartRequest(episode=self._episode, row_json=row_json(self._row))
        said = heard_turn(await self._ask(START, request), first=True)
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
        return heard_turn(await self._ask(STEP, request), first=False)

    async def close(self) -> None:
        """Tell the plugin that the episode is over; one that has died knows."""
        if not self._is_open:
            return
        self._is_open = False
        request = contract.CloseRequest(episode=self._episode)
        await self._client.ask_soon(CLOSE, request, SHORT_SECONDS)

    async def _ask(self, call: PluginCall, request: Frame) -> contract.Turn:
        """The answer, once the plugin has read in memory what it wants to know first."""
        return await self._client.ask_soon(call, request, CALL_SECONDS, goes_on=self._read)

    async def _read(self, turn: contract.Turn) -> tuple[PluginCall, Frame] | None:
        """What an answer that reads is told; None: it is no such answer."""
        if not self._desk.take(turn, uses_memory=self._client.uses_memory):
            return None
        found = await THREADS.call(partial(self._desk.find, turn.reads))
        return CONTINUE, contract.ContinueRequest(episode=self._episode, found=found)


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

    async def asks_memory(self) -> bool:
        """Whether the plugin says so, which is started for it. Raises SpecError, InfrastructureError."""
        await asyncio.to_thread(self.client.start)
        return self.client.uses_memory

    def build(self, row: Row) -> SidecarEpisode:
        """As ``build_with_memory``, with a memory of nothing, which nobody keeps."""
        return self.build_with_memory(row, EpisodeMemory())

    def build_with_memory(self, row: Row, memory: Memory) -> SidecarEpisode:
        """The episode of one row."""
        return SidecarEpisode(self.client, row, memory)

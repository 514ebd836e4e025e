"""The episodes of a user's environment, played for whoever calls."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from google.protobuf.message import Message as Frame

from rollout.environments.memory import build_episode
from rollout.environments.plugin import PluginBuilder, wrap_class
from rollout.errors import InfrastructureError
from rollout.plugins.served.answers import EPISODES_MAX, LEASE_SECONDS, Methods, told_failure
from rollout.plugins.served.memory import RememberingEpisode
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.wire import heard_message, told_turn
from rollout.seams import Env
from rollout.turns import Action
from rollout.types import Row

NO_EPISODE = "unknown-episode"


class _Episode(Protocol):
    """One episode, as it answers calls. Each method raises what the author's code does."""

    async def start(self) -> contract.Turn: ...
    async def step(self, action: Action) -> contract.Turn: ...
    async def go_on(self, found: Any) -> contract.Turn: ...
    async def close(self) -> None: ...


class _PlainEpisode:
    """Of an environment without memory."""

    def __init__(self, env: Env) -> None:
        self._env = env

    async def start(self) -> contract.Turn:
        return told_turn(await self._env.start())

    async def step(self, action: Action) -> contract.Turn:
        return told_turn(await self._env.step(action))

    async def go_on(self, found: Any) -> contract.Turn:
        del found
        raise InfrastructureError("the environment reads no memory")

    async def close(self) -> None:
        await self._env.close()


class EnvironmentService:
    """The open episodes of one environment."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._builder: PluginBuilder | None = None
        self._open: dict[str, tuple[_Episode, float]] = {}

    @property
    def methods(self) -> Methods:
        """What is served."""
        return {
            "Start": (self._start, contract.StartRequest),
            "Step": (self._step, contract.StepRequest),
            "Continue": (self._go_on, contract.ContinueRequest),
            "Close": (self._close, contract.CloseRequest),
        }

    @property
    def uses_memory(self) -> bool:
        """Whether its episodes do; False before it is configured."""
        return self._builder is not None and self._builder.uses_memory

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Wrap it as a run would."""
        self._builder = wrap_class(self._environment, dict(parameters), "environment")

    async def _start(self, request: contract.StartRequest) -> Frame:
        await self._forget()
        try:
            episode = self._build(json.loads(request.row_json))
            self._open[request.episode] = (episode, time.monotonic())
            return await episode.start()
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything: it is the answer
            return contract.Turn(failure=told_failure(error))

    def _build(self, row: Row) -> _Episode:
        builder = self._builder
        if builder is None:
            raise InfrastructureError("the plugin was not configured")
        if len(self._open) >= EPISODES_MAX:
            raise InfrastructureError(f"{len(self._open)} episodes are open")
        if builder.uses_memory:
            return RememberingEpisode(lambda memory: build_episode(builder, row, memory))
        return _PlainEpisode(builder.build(row))

    async def _step(self, request: contract.StepRequest) -> Frame:
        episode = self._heard(request.episode)
        if episode is None:
            return _unknown()
        try:
            message = heard_message(request.message)
            action = Action(message=message, text=request.text, turn=request.turn)
            return await episode.step(action)
        except Exception as error:  # noqa: BLE001 - likewise
            return contract.Turn(failure=told_failure(error))

    async def _go_on(self, request: contract.ContinueRequest) -> Frame:
        episode = self._heard(request.episode)
        if episode is None:
            return _unknown()
        try:
            return await episode.go_on(request.found)
        except Exception as error:  # noqa: BLE001 - likewise
            return contract.Turn(failure=told_failure(error))

    def _heard(self, name: str) -> _Episode | None:
        """An open episode, of which something was heard now."""
        if name not in self._open:
            return None
        episode, _ = self._open[name]
        self._open[name] = (episode, time.monotonic())
        return episode

    async def _close(self, request: contract.CloseRequest) -> Frame:
        episode, _ = self._open.pop(request.episode, (None, 0.0))
        if episode is not None:
            await episode.close()
        return contract.CloseResponse()

    async def _forget(self) -> None:
        """Close what nothing was heard of for too long."""
        before = time.monotonic() - LEASE_SECONDS
        for name in [name for name, (_, heard) in self._open.items() if heard < before]:
            await self._open.pop(name)[0].close()


def _unknown() -> contract.Turn:
    failure = contract.Failure(
        owner=contract.OWNER_INFRASTRUCTURE,
        code=NO_EPISODE,
        message="it was started afresh, or the episode was left for too long",
    )
    return contract.Turn(failure=failure)

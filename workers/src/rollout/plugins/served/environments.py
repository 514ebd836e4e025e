"""The episodes of a user's environment, played for whoever calls."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message as Frame

from rollout.environments.memory import refuse_memory
from rollout.environments.plugin import wrap_class
from rollout.errors import InfrastructureError
from rollout.plugins.served.answers import EPISODES_MAX, LEASE_SECONDS, Methods, told_failure
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.wire import heard_message, told_turn
from rollout.seams import Env, EnvBuilder
from rollout.turns import Action

NO_EPISODE = "unknown-episode"


class EnvironmentService:
    """The open episodes of one environment."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._builder: EnvBuilder | None = None
        self._open: dict[str, tuple[Env, float]] = {}

    @property
    def methods(self) -> Methods:
        """What is served."""
        return {
            "Start": (self._start, contract.StartRequest),
            "Step": (self._step, contract.StepRequest),
            "Close": (self._close, contract.CloseRequest),
        }

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Wrap it as a run would."""
        self._builder = wrap_class(self._environment, dict(parameters), "environment")
        refuse_memory(self._builder, "a plugin")

    async def _start(self, request: contract.StartRequest) -> Frame:
        await self._forget()
        try:
            episode = self._build(request.row_json)
            self._open[request.episode] = (episode, time.monotonic())
            return told_turn(await episode.start())
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything: it is the answer
            return contract.Turn(failure=told_failure(error))

    def _build(self, row_json: str) -> Env:
        if self._builder is None:
            raise InfrastructureError("the plugin was not configured")
        if len(self._open) >= EPISODES_MAX:
            raise InfrastructureError(f"{len(self._open)} episodes are open")
        return self._builder.build(json.loads(row_json))

    async def _step(self, request: contract.StepRequest) -> Frame:
        if request.episode not in self._open:
            failure = contract.Failure(
                owner=contract.OWNER_INFRASTRUCTURE,
                code=NO_EPISODE,
                message="it was started afresh, or the episode was left for too long",
            )
            return contract.Turn(failure=failure)
        episode, _ = self._open[request.episode]
        self._open[request.episode] = (episode, time.monotonic())
        try:
            message = heard_message(request.message)
            action = Action(message=message, text=request.text, turn=request.turn)
            return told_turn(await episode.step(action))
        except Exception as error:  # noqa: BLE001 - likewise
            return contract.Turn(failure=told_failure(error))

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

"""For authors: serve what is written in Python, a reward, an environment, tools, a suite, a tracker or data, as a plugin in a process of its own.

``plugin.py`` beside ``plugin.yaml``, whose command is ``[python, plugin.py]``::

    from rollout.plugins.serving import serve

    def score(prompts, completions, rows, word="please"):
        return [float(word in one.text) for one in completions]

    serve(reward=score)

Function and class are those that a manifest names with ``python``: what runs in process runs as a plugin. Tools are typed
functions, ``serve(tool=[area, price])``, or the public methods of a class, made for each episode with its row.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message as Frame
from grpc_health.v1 import health_pb2

from rollout.environments.memory import USES_MEMORY
from rollout.errors import SpecError, UnscoredRows
from rollout.plugins.served.answers import Handler, Methods, Served, told_failure
from rollout.plugins.served.environments import EnvironmentService
from rollout.plugins.served.facts import TrackerService
from rollout.plugins.served.rows import DataService, RowService
from rollout.plugins.served.tools import ToolService
from rollout.plugins.sidecar.client import CHANNEL
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.manifest import (
    MEMORY_CONTRACT,
    PluginFolder,
    PluginManifest,
    read_plugin,
)
from rollout.plugins.sidecar.process import SOCKET
from rollout.plugins.sidecar.wire import heard_message
from rollout.types import Completion, Finish

STOP_SECONDS = 2.0
SOCKET_MODE = 0o660
"""In a pod whoever calls is of another user, and of the socket's group."""


def serve(
    *,
    reward: Any = None,
    environment: Any = None,
    tool: Any = None,
    evaluation: Any = None,
    tracker: Any = None,
    data: Any = None,
) -> None:
    """Serve one of them until SIGTERM. Raises SpecError for several, for none, and for a kind that plugin.yaml does not name."""
    socket = os.environ.get(SOCKET)
    if socket is None:
        sys.stderr.write(f"a plugin is started by rollout: rollout plugins test {Path.cwd()}\n")
        sys.exit(2)
    plugin = read_plugin(Path.cwd())
    manifest = plugin.manifest
    given = {
        "reward": reward,
        "environment": environment,
        "tool": tool,
        "evaluation": evaluation,
        "tracker": tracker,
        "data": data,
    }
    kinds = [kind for kind, one in given.items() if one is not None]
    if kinds != [manifest.kind]:
        raise SpecError(f"serve({', '.join(kinds)}): plugin.yaml says kind {manifest.kind}")
    asyncio.run(_serve(socket, plugin, _SERVICES[manifest.kind](given[manifest.kind])))


async def _serve(socket: str, plugin: PluginFolder, service: Served) -> None:
    kind = plugin.manifest.kind.capitalize()
    server = grpc.aio.server(options=CHANNEL)
    server.add_generic_rpc_handlers(
        (
            _handlers("grpc.health.v1.Health", {"Check": (_check, health_pb2.HealthCheckRequest)}),
            _handlers("rollout.plugin.v1.Plugin", _common(plugin, service)),
            _handlers(f"rollout.plugin.v1.{kind}", service.methods),
        )
    )
    server.add_insecure_port(f"unix:{socket}")
    os.chmod(socket, SOCKET_MODE)  # noqa: PTH101 - a Path is not for event loops
    stop = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    await server.start()
    await stop.wait()
    await server.stop(STOP_SECONDS)


def _handlers(service: str, methods: Methods) -> Any:
    made = {
        name: grpc.unary_unary_rpc_method_handler(
            _without_context(handler),
            request_deserializer=request.FromString,
            response_serializer=lambda frame: frame.SerializeToString(),
        )
        for name, (handler, request) in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, made)


def _without_context(handler: Handler) -> Callable[[Any, Any], Awaitable[Frame]]:
    async def answer(request: Any, _: Any) -> Frame:
        return await handler(request)

    return answer


async def _check(_: Any) -> Frame:
    return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


def _common(plugin: PluginFolder, service: Served) -> Methods:
    manifest = plugin.manifest

    async def describe(request: contract.DescribeRequest) -> Frame:
        del request
        return contract.DescribeResponse(
            contract=manifest.contract,
            name=manifest.name,
            version=manifest.version,
            kind=manifest.kind,
        )

    async def configure(request: contract.ConfigureRequest) -> Frame:
        try:
            service.configure(plugin.configure(dict(request.parameters)))
            return contract.ConfigureResponse(uses_memory=_uses_memory(service, manifest))
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything: it is the answer
            return contract.ConfigureResponse(failure=told_failure(error))

    return {
        "Describe": (describe, contract.DescribeRequest),
        "Configure": (configure, contract.ConfigureRequest),
    }


def _uses_memory(service: Served, manifest: PluginManifest) -> bool:
    """Whether episodes use memory. Raises SpecError where plugin.yaml says a contract that has none."""
    uses = isinstance(service, EnvironmentService) and service.uses_memory
    if uses and manifest.contract < MEMORY_CONTRACT:
        raise SpecError(
            f"the environment declares {USES_MEMORY}, which plugins have from contract {MEMORY_CONTRACT} on: write"
            f" contract: {MEMORY_CONTRACT} in plugin.yaml, got {manifest.contract}"
        )
    return uses


class _Rewards:
    """One function over batches, run in threads."""

    def __init__(self, reward: Any) -> None:
        self._reward = reward
        self._score: Callable[..., Any] = reward

    @property
    def methods(self) -> Methods:
        """What is served."""
        return {"Score": (self.answer, contract.ScoreRequest)}

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Build it."""
        if isinstance(self._reward, type):
            made = self._reward(**parameters)
            self._score = getattr(made, "score", made)
        else:
            self._score = partial(self._reward, **parameters)

    async def answer(self, request: contract.ScoreRequest) -> Frame:
        """The scores of one batch."""
        scores = await asyncio.to_thread(self._score_all, list(request.samples))
        return contract.ScoreResponse(scores=scores)

    def _score_all(self, samples: Sequence[contract.Sample]) -> list[contract.Score]:
        try:
            return [_told_score(one) for one in _plain(self._score(*_heard(samples)), len(samples))]
        except UnscoredRows as error:
            lost = set(error.rows)
            return [
                contract.Score(failure=told_failure(error)) if place in lost else contract.Score()
                for place in range(len(samples))
            ]
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything: it is the answer
            if len(samples) == 1:
                return [contract.Score(failure=told_failure(error))]
            return [self._score_all([one])[0] for one in samples]


def _heard(samples: Sequence[contract.Sample]) -> tuple[list[Any], list[Completion], list[Any]]:
    """Prompts, completions and rows."""
    prompts = [tuple(heard_message(said) for said in one.prompt) for one in samples]
    completions = [
        Completion(token_ids=(), logprobs=(), finish=_finish(one.finish), text=one.reply)
        for one in samples
    ]
    return prompts, completions, [json.loads(one.row_json) for one in samples]


def _finish(told: str) -> Finish:
    finishes: dict[str, Finish] = {"length": "length", "aborted": "aborted"}
    return finishes.get(told, "stop")


def _plain(values: Any, wanted: int) -> list[Any]:
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(listed) != wanted:
        raise ValueError(f"it gave {len(listed)} scores for {wanted} samples")
    return listed


def _told_score(value: Any) -> contract.Score:
    """A number, or named numbers: their sum is the score, unless one is called ``score``."""
    if not isinstance(value, Mapping):
        return contract.Score(value=float(value))
    named = {str(name): float(one) for name, one in value.items()}
    total = named.pop("score") if "score" in named else sum(named.values())
    return contract.Score(value=total, named=named)


class _Suites:
    """One suite: a class with ``rows(split)`` and ``score(prompts, completions, rows)``, constructed with the parameters."""

    def __init__(self, evaluation: Any) -> None:
        self._evaluation = evaluation
        self._rows = RowService(lambda _: ())
        self._scores = _Rewards(None)

    @property
    def methods(self) -> Methods:
        """What is served."""
        return {
            "Rows": (self._give, contract.RowsRequest),
            "Score": (self._score, contract.ScoreRequest),
        }

    async def _give(self, request: contract.RowsRequest) -> Frame:
        return await self._rows.answer(request)

    async def _score(self, request: contract.ScoreRequest) -> Frame:
        return await self._scores.answer(request)

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Build it."""
        made = self._evaluation(**parameters)
        self._rows, self._scores = RowService(made.rows), _Rewards(made.score)


_SERVICES: Mapping[str, Callable[[Any], Served]] = {
    "reward": _Rewards,
    "environment": EnvironmentService,
    "tool": ToolService,
    "evaluation": _Suites,
    "tracker": TrackerService,
    "data": DataService,
}

"""Where ``verifiers`` runs: an event loop in a thread of its own, so that what its tasks compute holds up no other episode.

The only module that knows the package's names. Whose doing an end is follows from the boundary that its error crossed.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rollout.environments.adapters.packages import require_package
from rollout.errors import SpecError
from rollout.turns import Owner

PACKAGE = "verifiers.v1"
REQUIREMENT = "'verifiers>=0.4'"
SIGNALS_MAX = 31
"""Of rewards and metrics; one more is the adapter's."""
OUTSIDE = frozenset(
    {
        *("ProviderError", "HarnessError", "ToolsetError", "SandboxError", "InterceptionError"),
        *("TunnelError",),
    }
)
"""Boundaries of verifiers where nothing of the policy's or of the task's failed; the others are the task's own code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessEndpoint:
    """Where the harness finds its model: the episode's endpoint and its key."""

    url: str
    """Of OpenAI's API, in this process."""
    key: str
    """The episode's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessOutcome:
    """What became of an episode."""

    kind: str
    """verifiers' stop condition with dashes, or ``failed``."""
    owner: Owner = "policy"
    """Whose doing the end is."""
    detail: str = ""
    """The error, at most 2,000 characters; empty without one."""
    reward: float = 0.0
    """The sum of its weighted rewards."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """Its rewards unweighted, as ``reward_NAME``, and its metrics; at most ``SIGNALS_MAX``."""


class VerifiersHost:
    """One a process. Thread-safe; the package is imported with the first taskset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[str, Sequence[Any]] = {}

    def load(self, config: Mapping[str, Any]) -> Sequence[Any]:
        """The tasks of a configuration, read once. Blocks. Raises SpecError."""
        key = json.dumps(config, sort_keys=True)
        with self._lock:
            if key not in self._tasks:
                self._tasks[key] = _load_tasks(config)
            return self._tasks[key]

    def play(
        self, config: Mapping[str, Any], task: Any, endpoint: HarnessEndpoint
    ) -> Future[HarnessOutcome]:
        """Play one task; cancelled, it ends its harness."""
        return asyncio.run_coroutine_threadsafe(_play(config, task, endpoint), self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                threading.Thread(target=run, name="verifiers", daemon=True).start()
            return self._loop


HOST = VerifiersHost()
"""Of this process."""


def _build_env(config: Mapping[str, Any]) -> Any:
    """The package's environment. Raises SpecError for a configuration that it refuses, or of several agents."""
    package = require_package(PACKAGE, REQUIREMENT)
    taskset = config["env"]["taskset"]["id"]
    try:
        env = package.load_environment(package.resolve_env_config(dict(config["env"])))
    except Exception as error:
        raise SpecError(f"verifiers: the taskset {taskset!r} cannot be made: {error}") from error
    seats = [name for name, value in env.config if isinstance(value, package.AgentConfig)]
    if len(seats) != 1:
        raise SpecError(
            f"verifiers: {taskset!r} seats {', '.join(seats)}: an episode here has one policy; choose an environment"
            " with one agent"
        )
    return env


def _load_tasks(config: Mapping[str, Any]) -> Sequence[Any]:
    env, limit = _build_env(config), config["limit"]
    if limit is None and not env.taskset.bounded:
        raise SpecError("verifiers: the taskset is endless: say how many tasks with limit")
    return list(islice(env.taskset, limit))


async def _play(config: Mapping[str, Any], task: Any, endpoint: HarnessEndpoint) -> HarnessOutcome:
    """One episode, with servers of its own, which end with it."""
    package = require_package(PACKAGE, REQUIREMENT)
    env = _build_env(config)
    client = package.EvalClientConfig(
        base_url=endpoint.url, api_key_var="ROLLOUT_NO_KEY", headers={"x-api-key": endpoint.key}
    )
    context = package.ModelContext(model="policy", client=client)
    async with env.serving():
        episode = await env.run_episode(task, context)
    return read_episode(episode)


def read_episode(episode: Any) -> HarnessOutcome:
    """What an episode came to. Pure."""
    traces = list(episode.traces)
    failed = [*episode.errors, *(one for trace in traces if not trace.ok for one in trace.errors)]
    if failed:
        last = failed[-1]
        owner = "infrastructure" if last.type in OUTSIDE else "task"
        return HarnessOutcome(
            kind="failed", owner=owner, detail=f"{last.type}: {last.message}"[:2000]
        )
    trace = traces[-1]
    rewards = {name: one for name, one in trace.rewards.items() if one is not None}
    told = {
        **{f"reward_{name}": float(one.score) for name, one in rewards.items()},
        **{name: float(value) for name, value in trace.metrics.items() if value is not None},
    }
    return HarnessOutcome(
        kind=(trace.stop_condition or "stop").replace("_", "-"),
        reward=float(trace.reward),
        signals=dict(islice(told.items(), SIGNALS_MAX)),
    )

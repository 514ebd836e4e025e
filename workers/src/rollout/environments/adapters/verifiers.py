"""Tasksets of ``verifiers`` (0.4 and later): its harness plays them, and its model is the episode.

``{python: {module: rollout.environments.adapters.verifiers, className: Verifiers, parameters: [{name: taskset, value:
gsm8k}]}}``. The harness asks an endpoint that is its episode's alone, as agents do: what it asks for is what the policy
sees, what the policy says is its answer. The taskset's rewards, each times its weight, are the reward of the last turn;
rewards and metrics are told as signals by name. Environments of several agents are refused. The package is the user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from rollout.environments.adapters.verifiers_host import HOST, HarnessEndpoint, HarnessOutcome
from rollout.environments.agents.asks import AgentAsk, AskRefused, build_reply
from rollout.environments.agents.endpoint import AgentEndpoint
from rollout.environments.agents.history import AgentHistory
from rollout.environments.threads import THREADS
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.tools.sandbox.agent_sandbox import ListeningDoor
from rollout.turns import Action, Ending, State
from rollout.types import Row

HELD_OUT = {0: "report", 1: "selection"}
"""Of twenty tasks, by the digest of their keys, one reports and one selects: the rest is trained on."""
SHARES = 20
CLOSE_SECONDS_MAX = 8.0
"""For a harness that is told to end."""


class VerifiersEnv:
    """One episode: a task of the taskset, played once."""

    def __init__(self, config: Mapping[str, Any], row: Row) -> None:
        self._config, self._row = config, row
        self._endpoint = AgentEndpoint(key=secrets.token_hex(16))
        self._history = AgentHistory()
        self._playing: asyncio.Future[HarnessOutcome] | None = None
        self._door: ListeningDoor | None = None

    async def start(self) -> State:
        """What the harness first asks for. Raises DataError, InfrastructureError, SpecError."""
        listening = socket.create_server(("127.0.0.1", 0))
        self._door = ListeningDoor(listening)
        await self._endpoint.serve(self._door)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        endpoint = HarnessEndpoint(url=url, key=self._endpoint.key)
        place, key = int(self._row["task"]), str(self._row["key"])
        tasks = await THREADS.call(lambda: HOST.load(self._config))
        if place >= len(tasks) or tasks[place].key != key:
            raise DataError(
                f"verifiers: task {place} of the taskset is another one than when the rows were read:"
                " it has to give the same tasks each time"
            )
        self._playing = asyncio.wrap_future(HOST.play(self._config, tasks[place], endpoint))
        ask = await self._listen()
        if ask is not None:
            return self._history.take_ask(ask)
        ending = self._end(await self._playing)
        raise DataError(f"verifiers: the harness asked for no reply: {ending.kind} {ending.detail}")

    async def step(self, action: Action) -> State | Ending:
        """What the harness asks for next, or what the taskset's rewards say of its end."""
        assert self._playing is not None
        reply = build_reply(action)
        self._history.take_reply(reply)
        self._endpoint.answer(reply)
        ask = await self._listen()
        if ask is not None:
            return self._history.take_ask(ask)
        return self._end(await self._playing)

    async def close(self) -> None:
        """End the harness and the endpoint; idempotent."""
        playing, self._playing = self._playing, None
        if playing is not None and not playing.done():
            self._endpoint.turn_away(AskRefused(503, "the episode is over"))
            playing.cancel()
            await asyncio.wait({playing}, timeout=CLOSE_SECONDS_MAX)
        if self._door is not None:
            self._door.close()
        await self._endpoint.close()

    async def _listen(self) -> AgentAsk | None:
        """The next request; None where the harness has ended. Our loop's deadline bounds it."""
        assert self._playing is not None
        asking = asyncio.create_task(self._endpoint.next())
        try:
            await asyncio.wait({self._playing, asking}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

    def _end(self, played: HarnessOutcome) -> Ending:
        """Whose doing the end is. Raises InfrastructureError, DataError."""
        if played.owner == "infrastructure":
            raise InfrastructureError(f"verifiers: {played.detail}")
        if played.owner == "task":
            raise DataError(f"verifiers: {played.detail}")
        return Ending(
            kind=played.kind,
            detail=played.detail,
            turn_reward=played.reward,
            signals={**played.signals, "turns": float(self._history.num_turns)},
        )


class Verifiers:
    """Builds the episodes of ``taskset``, and brings its tasks as rows.

    ``harness``: the program that plays (``null``, a chat loop; a taskset's own is named ``own``). ``turns``: replies of one
    episode, then the harness is stopped and what there is of it is scored. ``limit``: so many of the tasks, which an
    endless taskset needs. ``settings``: JSON, merged into the configuration of the environment (``{"taskset": {...}}``).
    """

    def __init__(
        self,
        taskset: str,
        harness: str = "null",
        turns: str = "32",
        limit: str = "",
        settings: str = "{}",
    ) -> None:
        self.config = build_config(taskset, harness, turns, limit, settings)

    def rows(self, split: str) -> list[dict[str, Any]]:
        """The tasks that fall into a split, by their keys. Raises SpecError."""
        tasks = HOST.load(self.config)
        return [
            _row(place, task) for place, task in enumerate(tasks) if split_of(task.key) == split
        ]

    def build(self, row: Row) -> VerifiersEnv:
        """The episode of one row."""
        return VerifiersEnv(self.config, row)


def build_config(
    taskset: str, harness: str, turns: str, limit: str, settings: str
) -> dict[str, Any]:
    """What the host is asked for: ``env`` is verifiers' own configuration. Raises SpecError."""
    try:
        given = json.loads(settings)
    except ValueError as error:
        raise SpecError(f"verifiers: settings are no JSON ({error}): write an object") from error
    if not isinstance(given, dict):
        raise SpecError(f"verifiers: settings must be a JSON object, got {settings!r:.60}")
    for name, value in (("turns", turns), ("limit", limit or "1")):
        if not value.isdigit() or int(value) < 1:
            raise SpecError(f"verifiers: {name} must be a whole number of 1 or more, got {value!r}")
    agent: dict[str, Any] = {"runtime": {"type": "subprocess"}, "max_turns": int(turns)}
    if harness != "own":
        agent["harness"] = {"id": harness}
    fixed = {"taskset": {"id": taskset}, "agent": agent, "interception": {"type": "server"}}
    return {"env": merge(fixed, given), "limit": int(limit) if limit else None}


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both; where both say something, the second, objects member by member."""
    found = dict(first)
    for name, value in second.items():
        before = found.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[name] = merge(before, value) if both else value
    return found


def split_of(key: str) -> str:
    """The split that a task falls into, whatever the order of the taskset."""
    share = int.from_bytes(blake3(key.encode()).digest(8), "big") % SHARES
    return HELD_OUT.get(share, "train")


def _row(place: int, task: Any) -> dict[str, Any]:
    data = task.data
    shown = data.prompt_text or data.name or f"task {place}"
    row = {"prompt": shown, "task": place, "key": task.key}
    answer = getattr(data, "answer", None)
    return row if answer is None else {**row, "answer": str(answer)}

"""An environment of OpenEnv, served over a WebSocket: each reply of the policy is an action, each observation a message.

``{python: {module: rollout.environments.adapters.openenv, className: OpenEnv, parameters: [{name: url, value:
"http://localhost:8000"}]}}``. The server is the user's, and started by the user; one connection is one episode. An action
that does not fit the server's schema is told so and costs a turn; what a server raises of itself is the task's, and one that
is away, full or silent is infrastructure. Needs the package ``openenv``, the client only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout.environments.adapters.attempts import Attempts
from rollout.environments.adapters.openenv_texts import (
    Mistake,
    Wording,
    read_action,
    read_tools,
    tell_observation,
    tell_result,
)
from rollout.environments.adapters.packages import require_package
from rollout.environments.adapters.seeds import seed_rows
from rollout.environments.plugin import RowsSource
from rollout.environments.threads import THREADS
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.seams import DataSource
from rollout.turns import Action, Ending, State, ToolSpec
from rollout.types import Message, Row, ToolResult

REQUIREMENT = "openenv"
MISTAKE_CHARACTERS_MAX = 500
CONNECT_SECONDS = 30.0
ANSWER_SECONDS = 900.0
"""For one message: longer than the loop's own deadline, which knows whose doing it is."""
ANSWER_MEBIBYTES_MAX = 8.0
REFUSED_ACTION = "VALIDATION_ERROR"
OUTSIDE = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""What a server says where no action of anybody's is at fault."""
_CODE = re.compile(r"\(code: ([A-Z_]+)\)\s*$")


class OpenEnvEpisode:
    """One episode on one connection. The turn's reward is the server's."""

    def __init__(self, place: OpenEnvServer, row: Row) -> None:
        self._place, self._row = place, row
        self._client: Any = None
        self._tools: tuple[ToolSpec, ...] = ()
        self._schema: Mapping[str, Any] = {}
        self._attempts = Attempts()

    async def start(self) -> State:
        """The first observation. Raises InfrastructureError, DataError, SpecError."""
        self._client = await THREADS.call(self._place.open)
        await self._ask(self._client.connect())
        if self._place.tools:
            listed = await self._ask(self._client.step({"type": "list_tools"}))
            self._tools = read_tools(listed.observation)
        else:
            self._schema = await THREADS.call(self._place.schema)
        begun = await self._ask(self._client.reset(**self._place.reset_with(self._row)))
        if begun.done:
            raise DataError("openenv: the episode is over before its first action")
        told = tell_observation(begun.observation, self._place.wording)
        text = "\n\n".join(one for one in (self._place.instruction, told) if one)
        return State(messages=(Message(role="user", content=text),), tools=self._tools or None)

    async def step(self, action: Action) -> State | Ending:
        """The next observation with its reward, or the end."""
        if self._tools:
            return await self._call(action)
        try:
            taken = read_action(action.text, self._schema, self._place.wording)
            done = await self._ask(self._client.step(taken))
        except Mistake as mistake:
            return self._attempts.refuse(str(mistake)[:MISTAKE_CHARACTERS_MAX])
        self._attempts.took()
        told = tell_observation(done.observation, self._place.wording)
        return self._go_on((Message(role="user", content=told),), done.reward, over=done.done)

    async def close(self) -> None:
        """End the connection; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _call(self, action: Action) -> State | Ending:
        """The results of the calls, one after the other; a reply without one is the last word."""
        if not action.calls:
            return Ending(kind="answered", turn_reward=0.0, signals=self._attempts.signals())
        results: list[ToolResult] = []
        reward, over = 0.0, False
        for call in action.calls:
            text, is_error = "the episode is over: this call was not made", True
            if not over and call.status == "ok":
                wanted = {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
                done = await self._ask(self._client.step(wanted))
                text, is_error = tell_result(done.observation)
                reward, over = reward + float(done.reward or 0.0), done.done
                self._attempts.steps += 1
            elif not over:
                text = f"{call.status}: there is no such call; arguments are a JSON object"
                self._attempts.mistakes += 1
            given = {"call_id": call.call_id, "name": call.name}
            results.append(ToolResult(**given, text=text, is_error=is_error))
        return self._go_on((Message(role="tool", content=tuple(results)),), reward, over=over)

    def _go_on(
        self, messages: tuple[Message, ...], reward: float | None, *, over: bool
    ) -> State | Ending:
        given = {"turn_reward": float(reward or 0.0), "signals": self._attempts.signals()}
        return Ending(kind="done", **given) if over else State(messages=messages, **given)

    async def _ask(self, call: Any) -> Any:
        """What the server answers. Raises Mistake, InfrastructureError, DataError."""
        try:
            return await call
        except RuntimeError as error:
            code = _CODE.search(str(error))
            if code is not None and code[1] == REFUSED_ACTION:
                raise Mistake(str(error)) from error
            if code is None or code[1] in OUTSIDE:
                raise InfrastructureError(f"openenv, {self._place.url}: {error}") from error
            raise DataError(f"openenv, {self._place.url}: {error}") from error
        except (OSError, TimeoutError, *self._place.closed()) as error:
            raise InfrastructureError(
                f"openenv, {self._place.url}: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvServer:
    """A server, and how it is spoken with."""

    url: str
    """Of the server."""
    wording: Wording
    """Which fields replies and observations are."""
    instruction: str = ""
    """Stands before the first observation; empty: nothing does."""
    reset: tuple[str, ...] = ()
    """Fields of a row that an episode begins with; none: its seed."""
    tools: bool = False
    """The server's tools are the policy's; else a reply is an action."""
    key: str = ""
    """Sent as a bearer token; empty: none."""

    def open(self) -> Any:
        """A client that is not connected. Raises SpecError."""
        client = require_package("openenv.core", REQUIREMENT).GenericEnvClient
        return client(
            base_url=self.url,
            connect_timeout_s=CONNECT_SECONDS,
            message_timeout_s=ANSWER_SECONDS,
            max_message_size_mb=ANSWER_MEBIBYTES_MAX,
            websocket_ping_interval_s=None,  # a step may take longer than a server lets pings wait
            **({"headers": headers} if (headers := self._headers()) else {}),
        )

    def schema(self) -> Mapping[str, Any]:
        """What the server says an action is. Raises InfrastructureError."""
        import httpx

        if self.wording.action:
            return {}
        try:
            answer = httpx.get(
                f"{self.url}/schema", headers=self._headers(), timeout=CONNECT_SECONDS
            )
            return answer.raise_for_status().json()["action"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise InfrastructureError(
                f"openenv, {self.url}/schema: {type(error).__name__}: {error}; the parameter action names the"
                " action's field without it"
            ) from error

    def reset_with(self, row: Row) -> dict[str, Any]:
        """What the episode begins with. Raises DataError for a row without a field."""
        names = self.reset or ("seed",)
        missing = [name for name in names if name not in row]
        if missing:
            raise DataError(f"openenv: the row has no {missing[0]!r}, which reset names")
        return {name: row[name] for name in names}

    def closed(self) -> tuple[type[Exception], ...]:
        """What the client raises of a connection that has ended."""
        return (require_package("websockets.exceptions", REQUIREMENT).ConnectionClosed,)

    def _headers(self) -> dict[str, str]:
        if not self.key:
            return {}
        if not (value := os.environ.get(self.key)):
            raise SpecError(f"openenv: the variable {self.key} is not set; give it in env")
        return {"Authorization": f"Bearer {value}"}


class OpenEnv:
    """Builds episodes on the server at ``url``.

    ``action``: the field of an action that a reply is; unset: the only field that the server's schema requires, else a reply
    is the action's JSON. ``observation``: the field that is shown; unset: the only text in it, else its JSON. ``instruction``
    stands before the first one. ``reset``: fields of the run's data that an episode begins with, by commas; unset: seeds, and
    no data. ``tools`` ``true``: the server's tools are the policy's, and a reply without a call ends the episode. ``key``: a
    variable with the server's key.
    """

    def __init__(
        self,
        url: str,
        action: str = "",
        observation: str = "",
        instruction: str = "",
        reset: str = "",
        tools: str = "false",
        key: str = "",
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise SpecError(f"openenv: url must begin with http:// or https://, got {url!r:.80}")
        if tools not in ("true", "false"):
            raise SpecError(f"openenv: tools must be true or false, got {tools!r:.40}")
        self._place = OpenEnvServer(
            url=url.rstrip("/"),
            wording=Wording(action=action, observation=observation),
            instruction=instruction,
            reset=tuple(name.strip() for name in reset.split(",") if name.strip()),
            tools=tools == "true",
            key=key,
        )

    def source(self, split: str, seed: int) -> DataSource | None:
        """A seed each; None where the run's data says what episodes begin with."""
        del seed
        require_package("openenv.core", REQUIREMENT)
        if self._place.reset:
            return None
        return RowsSource(seed_rows(split), f"openenv, seeds of {split!r}")

    def build(self, row: Row) -> OpenEnvEpisode:
        """The episode of one row."""
        return OpenEnvEpisode(self._place, row)

"""Where an agent's request goes on: behind the last turn, behind an earlier one, or with a prompt of its own.

Pure. A request repeats the whole conversation. What of it was said before is found by comparing messages, and its
tokens are those that were sampled, whatever the agent made of them; what is new is appended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollout.environments.agents.asks import AgentAsk, GivenReply, assistant_parts, read_arguments
from rollout.turns import State
from rollout.types import Message, ToolCall, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """All that was said up to a reply, with it, and the digests of the tools that stood there."""

    said: tuple[str, ...]
    tools: tuple[str, ...]


@dataclass(slots=True)
class AgentHistory:
    """One episode's turns."""

    _turns: list[_Turn] = field(default_factory=list)
    _asked: _Turn | None = None

    @property
    def num_turns(self) -> int:
        """Replies that were given."""
        return len(self._turns)

    def take_ask(self, ask: AgentAsk) -> State:
        """What is new in a request, and behind which turn it stands."""
        said = tuple(_key(message) for message in ask.messages)
        tools = tuple(tool.digest for tool in ask.tools)
        self._asked = _Turn(said=said, tools=tools)
        behind = self._find(said, tools)
        if behind is None:
            after = None if not self._turns else -1
            return State(messages=ask.messages, tools=ask.tools, after=after)
        new = ask.messages[len(self._turns[behind].said) :]
        last = behind == len(self._turns) - 1
        return State(messages=new, after=None if last else behind)

    def take_reply(self, reply: GivenReply) -> None:
        """The reply to the latest request."""
        assert self._asked is not None
        message = Message(role="assistant", content=assistant_parts(reply.text, reply.calls))
        said = (*self._asked.said, _key(message))
        self._turns.append(_Turn(said=said, tools=self._asked.tools))

    def _find(self, said: Sequence[str], tools: tuple[str, ...]) -> int | None:
        """The turn with the longest conversation that a request begins with, the latest of equals."""
        found = [
            (len(turn.said), index)
            for index, turn in enumerate(self._turns)
            if turn.tools == tools
            and len(turn.said) < len(said)
            and tuple(said[: len(turn.said)]) == turn.said
        ]
        return max(found)[1] if found else None


def _key(message: Message) -> str:
    """A message as it is compared: the white space around a reply, its reasoning and the ids of calls are left out."""
    results = [part.text for part in message.parts if isinstance(part, ToolResult)]
    text = message.text.strip() if message.role == "assistant" else message.text
    calls = [[call.name, _written(call)] for call in message.calls]
    return json.dumps([message.role, results or text, calls], ensure_ascii=False)


def _written(call: ToolCall) -> str:
    return json.dumps(read_arguments(call.arguments_text), sort_keys=True)

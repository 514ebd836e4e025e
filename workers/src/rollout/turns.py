"""What an episode's loop and its environment say to each other, turn by turn: State, Action, Ending.

An environment knows messages and tools, never tokens, models or budgets. It is asked ``start`` once and ``step``
after every reply; it says what is new, or that the episode is over, why, and whose doing that is. Budgets are the
loop's, and are looked at in one order (``Budgets``). Frozen data, no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from blake3 import blake3
from msgspec import UNSET

from rollout.types import Branch, Message, Prefix, ToolCall, Trajectory

Owner = Literal["policy", "task", "infrastructure"]
"""Whose doing an ending is. ``policy``: data, scored. ``task``: its row or its environment is broken, never scored.
``infrastructure``: a node, a network, a service; never scored, tried again on a fresh environment with the same noise,
then left out of its group."""


ROWS_MAX = 64
"""Rows of one episode: no trajectory has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the policy sees it; all three fields are part of the prompt."""

    name: str
    """What a call says to mean this tool."""
    description: str
    """What it does, for the policy."""
    parameters: Mapping[str, Any]
    """JSON schema of an object."""

    @property
    def digest(self) -> str:
        """blake3 of what the policy sees: a description alone that changes changes it."""
        seen = {"name": self.name, "description": self.description, "parameters": self.parameters}
        written = json.dumps(seen, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return f"blake3:{blake3(written.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One whole reply of the policy, as an environment hears it.

    A reply that the token limit cut off never comes here: the episode has ended.
    """

    message: Message
    """The reply's parts: text, reasoning, calls."""
    text: str
    """The reply as it was decoded."""
    turn: int = 0
    """Counts from 0."""
    num_prompt_tokens: int = field(default=0, compare=False)
    """Tokens before the reply."""
    num_tokens: int = field(default=0, compare=False)
    """Tokens sampled for it."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the reply, in order; those with a status other than ``ok`` are the policy's mistakes."""
        return self.message.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The episode goes on.

    Neither ``turn_reward`` nor ``signals`` is seen by the policy.
    """

    messages: tuple[Message, ...]
    """The new ones only: what was said before cannot be taken back."""
    tools: tuple[ToolSpec, ...] | None = None
    """What may be called; None: as before (none at the start)."""
    turn_reward: float | None = None
    """For the reply just heard; None: nothing was given."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """Numbers about that reply by name, for metrics."""
    after: int | None = None
    """The turn behind whose reply ``messages`` stand, counted from 0; None: the latest; -1: behind none, they are a
    prompt of their own. Other than None, another row of the episode begins, or is taken up: all are trained on, and
    share the episode's reward (``actor.turns.rows``)."""
    choices: tuple[str, ...] = ()
    """Said at a start with one message, the only replies that there may be. The engine says how likely each is behind
    that message's text, without a chat template, and the likeliest is the policy's reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The episode is over. ``turn_reward`` and ``signals`` are heard of an ending that is the policy's, no other."""

    kind: str = "stop"
    """How, in lower case: ``stop``, ``answered``, ``tool-loop``."""
    owner: Owner = "policy"
    """Whose doing it is: decides whether the episode is scored, tried again or left out."""
    detail: str = ""
    """More, for people."""
    turn_reward: float | None = None
    """As in ``State``."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """As in ``State``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What one episode may use; None: no bound of its own. Using one up is an ending of the policy's, and is scored.

    After each reply, in this order: a reply cut off (``length``), more calls than are left (``tool-call-limit``, and
    none of them is run), the environment's own ending, then ``turn-limit``, ``token-limit``, ``seconds-limit``,
    another row than there may be (``row-limit``), and no room for another reply in the context (``length``).
    """

    turns: int = 64
    """Replies."""
    tokens: int | None = None
    """Tokens sampled by the policy, on all rows."""
    tool_calls: int | None = None
    """Calls asked for, those that fail included."""
    seconds: float | None = None
    """From the start of the environment on, looked at between turns."""
    rows: int = ROWS_MAX
    """Rows that are trained on (``State.after``), at most ``ROWS_MAX``."""

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "tool_calls", "seconds", "rows"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}: expected more than 0, got {value}")
        if self.rows > ROWS_MAX:
            raise ValueError(f"rows: expected at most {ROWS_MAX}, got {self.rows}")


def further_rows(made: Sequence[Trajectory | Prefix]) -> list[Branch]:
    """The rows of episodes beside their first ones; a beginning is of an episode of one row.

    No call is made for what has one row: it is asked for each sample of a run.
    """
    return [
        row
        for one in made
        if type(one) is Trajectory and one.branches is not UNSET
        for row in one.branches
    ]

"""What a tool is: a name with a schema that the policy sees, and something that runs for one episode.

A tool object is made for one episode and closed with it. What the policy asked for wrongly is a ``ToolMistake``: it
comes back to the policy as text and is data. An InfrastructureError is nobody's doing and never scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollout.turns import ToolSpec
from rollout.types import Row


class ToolMistake(Exception):  # noqa: N818 - what the policy did
    """A call that cannot be done as it was asked for; the message is what the policy reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What one call gave. ``signals`` are numbers for metrics, by name, which the policy does not see."""

    text: str
    is_error: bool = False
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTraits:
    """What a toolbox must know of a tool. ``pure``: an equal call gives an equal answer and changes nothing."""

    pure: bool = False
    seconds: float = 30.0


class Tool(Protocol):
    """One tool in one episode."""

    @property
    def spec(self) -> ToolSpec:
        """What the policy sees."""
        ...

    @property
    def traits(self) -> ToolTraits:
        """How it may be called."""
        ...

    async def call(self, arguments: Mapping[str, Any], key: str) -> ToolAnswer:
        """Do it. ``key`` is the call's own, the same when it is asked for again: what is done twice by it is done once.

        Raises ToolMistake, or InfrastructureError.
        """
        ...

    async def close(self) -> None:
        """Free what it holds; idempotent."""
        ...


class ToolSource(Protocol):
    """Makes the tools of an episode; one object a run."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy will see: known before any episode, and the same in each."""
        ...

    def open(self, row: Row) -> tuple[Tool, ...]:
        """The tools of one episode. Nothing is started before the first call."""
        ...

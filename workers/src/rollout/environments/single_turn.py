"""One question, one answer: the default environment over ``train.data``, and the same with answers to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.data.rows.mapping import row_messages
from rollout.seams import DataSource
from rollout.turns import Action, Ending, State
from rollout.types import Message, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTurn:
    """An episode that is over after the first reply."""

    messages: tuple[Message, ...]
    """The row's conversation."""
    choices: tuple[str, ...] = ()
    """The only replies that there may be (``State.choices``); empty: any."""

    async def start(self) -> State:
        """The row's conversation."""
        return State(messages=self.messages, choices=self.choices)

    async def step(self, action: Action) -> Ending:
        """Nothing to add; the episode is over."""
        del action
        return Ending()

    async def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTurnBuilder:
    """Builds single-turn episodes; the rows are the run's."""

    def source(self, split: str, seed: int) -> DataSource | None:
        """No rows of its own."""
        del split, seed
        return None

    def build(self, row: Row) -> SingleTurn:
        """The episode of one row."""
        return SingleTurn(messages=row_messages(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceBuilder:
    """Builds single-turn episodes whose reply is the likeliest of the row's ``continuations``."""

    def source(self, split: str, seed: int) -> DataSource | None:
        """No rows of its own."""
        del split, seed
        return None

    def build(self, row: Row) -> SingleTurn:
        """The episode of one row."""
        return SingleTurn(messages=row_messages(row), choices=tuple(row["continuations"]))

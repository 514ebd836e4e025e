"""A model's steps out of its calls: what was gathered before each, with which numbers it was taken, what came of it.

Everything is folded over the calls as they come: memory does not grow with the book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import (
    ForwardBackward,
    LossAnswer,
    OptimStep,
    RefusedAnswer,
    StepAnswer,
)
from rollout.service.reading.decoding import ReadCall, read_booked
from rollout.service.reading.words import kind_name, num_tokens

LOSS = "loss:sum"
"""The metric of a call that is its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """One step of the optimizer, the first is 1. ``loss``: sum over all calls and tokens that it was taken on."""

    step: int
    seq: int
    asked: OptimStep
    losses: tuple[str, ...]
    loss: float
    num_calls: int
    num_sequences: int
    num_tokens: int
    metrics: dict[str, float]
    chain: str
    answered_at: float


@dataclass(slots=True, kw_only=True)
class StepFold:
    """Owns what has been gathered since the last step."""

    steps: int = 0
    _names: dict[str, None] = field(default_factory=dict)
    _loss: float = 0.0
    _calls: int = 0
    _sequences: int = 0
    _tokens: int = 0

    def take(self, one: ReadCall) -> TakenStep | None:
        """The next call; the step where it is one that was taken."""
        call, answer = one.call, one.answer
        if isinstance(call, ForwardBackward) and isinstance(answer, LossAnswer) and call.backward:
            self._names[call.loss] = None
            self._loss += answer.metrics.get(LOSS, float("nan"))
            self._calls += 1
            self._sequences += len(call.data)
            self._tokens += num_tokens(call)
        if not isinstance(call, OptimStep) or not isinstance(answer, StepAnswer):
            return None
        self.steps += 1
        step = TakenStep(
            step=self.steps,
            seq=one.seq,
            asked=call,
            losses=tuple(self._names),
            loss=self._loss,
            num_calls=self._calls,
            num_sequences=self._sequences,
            num_tokens=self._tokens,
            metrics=answer.metrics,
            chain=one.chain or "",
            answered_at=one.answered_at or 0.0,
        )
        self._names, self._loss, self._calls, self._sequences, self._tokens = {}, 0.0, 0, 0, 0
        return step


@dataclass(slots=True, kw_only=True)
class LineFold:
    """Owns where a model's calls stand. ``missing``: the first call that is not there though later ones are."""

    answered: int = 0
    waiting: int = 0
    refused: int = 0
    missing: int | None = None
    chain: str
    kinds: Counter[str] = field(default_factory=Counter)
    damage: str = ""
    _next: int = 1

    def take(self, one: ReadCall) -> None:
        """The next call."""
        self.kinds[kind_name(one.call)] += 1
        if one.seq != self._next and self.missing is None:
            self.missing = self._next
        self._next = one.seq + 1
        if one.answer is None or one.chain is None:
            self.waiting += 1
            return
        if (self.missing is not None or self.waiting) and not self.damage:
            at = self.missing or one.seq - self.waiting
            self.damage = f"call {at} is not answered in the book, though call {one.seq} is: restore it from a copy"
        self.answered, self.chain = one.seq, one.chain
        self.refused += isinstance(one.answer, RefusedAnswer)

    def state(self) -> str:
        """Where the model stands, in words."""
        if self.damage:
            return f"broken: {self.damage}"
        if self.missing is not None:
            return f"call {self.missing} has not come, {self.waiting} later ones wait for it"
        if self.waiting:
            return f"{self.waiting} calls wait for their answers, the first is call {self.answered + 1}"
        return f"all {self.answered} calls are answered"


def read_calls(book: CallBookReader, model_id: str, after: int = 0) -> Iterator[ReadCall]:
    """The calls of a model, in order. Raises LedgerError."""
    return map(read_booked, book.each(model_id, after))


def read_steps(book: CallBookReader, model_id: str) -> Iterator[TakenStep]:
    """The steps of a model, in order. Raises LedgerError."""
    fold = StepFold()
    for one in read_calls(book, model_id):
        step = fold.take(one)
        if step is not None:
            yield step

"""What the answered calls of a model come to, folded as far as time allows and gone on with later.

An answered call never changes, so nothing is read twice. Memory grows by eight bytes a step and a saved version.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_reader import CallBookReader, DatedCall
from rollout.service.calls import RefusedAnswer, SavedAnswer
from rollout.service.reading.curves import LongCurve
from rollout.service.reading.decoding import ReadCall, read_booked
from rollout.service.reading.standing import BookStanding
from rollout.service.reading.steps import StepFold, TakenStep
from rollout.service.reading.words import kind_name

STEPS_SHOWN = 10
"""Of the first and of the last steps."""
CALLS_AT_ONCE = 64
"""Of one query; one of them is in memory."""
GRADIENT_NORM = "gradient_norm:max"


@dataclass(slots=True, kw_only=True)
class StepCurves:
    """The curves of a model's steps: the sum of the losses, that by token, tokens, gradient norm, learning rate."""

    loss: LongCurve = field(default_factory=LongCurve)
    token_loss: LongCurve = field(default_factory=LongCurve)
    tokens: LongCurve = field(default_factory=LongCurve)
    gradient_norm: LongCurve = field(default_factory=LongCurve)
    learning_rate: LongCurve = field(default_factory=LongCurve)

    def take(self, step: TakenStep) -> None:
        """The next step."""
        self.loss.add(step.step, step.loss if step.num_calls else float("nan"))
        if step.num_tokens:
            self.token_loss.add(step.step, step.loss / step.num_tokens)
        self.tokens.add(step.step, step.num_tokens)
        self.gradient_norm.add(step.step, step.metrics.get(GRADIENT_NORM, float("nan")))
        self.learning_rate.add(step.step, step.asked.learning_rate)


@dataclass(slots=True, kw_only=True)
class ModelFold:
    """Owns what calls 1 to ``done`` of one model come to; ``chain`` is the value behind them.

    ``damage``: why the next one cannot be taken; then nothing is gone on with. ``first`` and ``last`` are its first and
    its last ten steps (a step is in one of them).
    """

    chain: str
    done: int = 0
    refused: int = 0
    tokens: int = 0
    damage: str = ""
    kinds: Counter[str] = field(default_factory=Counter)
    steps: StepFold = field(default_factory=StepFold)
    curves: StepCurves = field(default_factory=StepCurves)
    first: list[TakenStep] = field(default_factory=list)
    last: deque[TakenStep] = field(default_factory=lambda: deque(maxlen=STEPS_SHOWN))
    _steps_at: array[int] = field(default_factory=lambda: array("q"))
    _saves_at: array[int] = field(default_factory=lambda: array("q"))

    def go_on(
        self, book: CallBookReader, model_id: str, standing: BookStanding, seconds: float
    ) -> None:
        """Take calls up to the last answered one of ``standing``, for about so long. Raises LedgerError for a book that cannot be read."""
        ends_at = time.monotonic() + seconds
        if self.done >= standing.answered or self.damage:
            return
        for found in book.each(model_id, self.done, CALLS_AT_ONCE):
            if not self._take(found, standing) or self.done >= standing.answered:
                return
            if time.monotonic() > ends_at:
                return

    def is_whole(self, standing: BookStanding) -> bool:
        """Whether there is nothing to go on with."""
        return bool(self.damage) or self.done >= standing.answered

    def step_of(self, seq: int) -> int:
        """How many steps were taken before a call."""
        return bisect_right(self._steps_at, seq)

    def saves_before(self, seq: int) -> Iterator[int]:
        """The calls that saved weights to sample from, the last before ``seq`` first."""
        number = bisect_left(self._saves_at, seq)
        return (self._saves_at[at] for at in range(number - 1, -1, -1))

    def save_ends(self, step: int) -> tuple[int, int]:
        """Weights of this step were saved by calls behind the first and before the second of these numbers."""
        taken = len(self._steps_at)
        if step > taken:
            return (self.done + 1, self.done + 1)
        after = self._steps_at[step - 1] if step else 0
        return (after, self._steps_at[step] if step < taken else self.done + 1)

    @property
    def num_saves(self) -> int:
        """How often weights were saved to sample from."""
        return len(self._saves_at)

    def _take(self, found: DatedCall, standing: BookStanding) -> bool:
        at = self.done + 1
        if found.booked.seq != at or found.booked.answer is None:
            self.damage = (
                f"call {at} is not answered in the book, though call {standing.answered} is:"
                " restore it from a copy"
            )
            return False
        try:
            self._add(read_booked(found))
        except LedgerError as error:
            self.damage = str(error)
            return False
        return True

    def _add(self, one: ReadCall) -> None:
        self.done, self.chain = one.seq, one.chain or ""
        self.kinds[kind_name(one.call)] += 1
        self.refused += isinstance(one.answer, RefusedAnswer)
        if isinstance(one.answer, SavedAnswer) and not one.answer.state:
            self._saves_at.append(one.seq)
        step = self.steps.take(one)
        if step is not None:
            self._steps_at.append(one.seq)
            (self.first if len(self.first) < STEPS_SHOWN else self.last).append(step)
            self.tokens += step.num_tokens
            self.curves.take(step)

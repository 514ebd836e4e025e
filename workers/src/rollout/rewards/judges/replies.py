"""Verdicts that a judge writes: asked until a reply says what counts, a few times at most.

What was paid for replies that say nothing counts, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rollout.errors import InfrastructureError
from rollout.rewards.chat_endpoint import Asked, Said
from rollout.rewards.judges.panel import Parts, Spent
from rollout.rewards.judges.verdicts import (
    PAIRS,
    RANKING,
    SCORE,
    build_question,
    read_preference,
    read_ranking,
    read_score,
)

TRIES_FOR_A_VERDICT = 3
"""Replies that are asked for until one says what counts."""
PRICE_MAX = 1e6
"""Of a million tokens."""

T = TypeVar("T")
Ask = Callable[[str, Asked], Said]
"""Puts a question to the judge. Raises InfrastructureError, RequestRefused for what it will not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a judge is asked."""

    judge: str
    """Its name, for messages."""
    instructions: str = ""
    """Empty: ours."""
    scale: float = 10.0
    """Up to which a score counts, > 0."""
    max_tokens: int = 512
    """Of one reply, >= 1."""
    prompt_price: float = 0.0
    """Of a million tokens of questions, 0 to 1e6."""
    completion_price: float = 0.0
    """Of a million tokens of replies, 0 to 1e6."""

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale)) or self.max_tokens < 1:
            raise ValueError("expected scale above 0 and maxTokens of at least 1")
        if not (0 <= self.prompt_price <= PRICE_MAX and 0 <= self.completion_price <= PRICE_MAX):
            raise ValueError(f"promptPrice and completionPrice: expected 0 to {PRICE_MAX:.0f}")


class Replies:
    """``Verdicts`` of a judge that writes."""

    def __init__(self, manner: Manner, ask: Ask) -> None:
        self._manner, self._ask = manner, ask

    def score(self, parts: Parts) -> tuple[float, Spent]:
        """The share of the scale that it says."""
        scale = self._manner.scale
        wanted = f"score from 0 to {scale:g}"
        return self._verdict(SCORE, parts, lambda text: read_score(text, scale), wanted)

    def prefer(self, parts: Parts) -> tuple[float, Spent]:
        """1, 0, or 0.5 for a tie."""
        return self._verdict(PAIRS, parts, read_preference, "line Better: A, B or tie")

    def rank(self, parts: Parts, count: int) -> tuple[list[float], Spent]:
        """The share of the others that each beats."""
        wanted = f"ranking of all {count}"
        return self._verdict(RANKING, parts, lambda text: read_ranking(text, count), wanted)

    def _verdict(
        self, ours: str, parts: Parts, read: Callable[[str], T | None], wanted: str
    ) -> tuple[T, Spent]:
        question = build_question(self._manner.instructions or ours, parts)
        spent, said = Spent(), ""
        for tried in range(TRIES_FOR_A_VERDICT):
            tokens = self._manner.max_tokens
            asked = Asked(max_tokens=tokens, seed=tried, temperature=float(tried > 0))
            reply = self._ask(question, asked)
            spent += self._price(reply)
            said = reply.text
            if (found := read(said)) is not None:
                return found, spent
        raise InfrastructureError(
            f"the judge {self._manner.judge} said no {wanted} in {TRIES_FOR_A_VERDICT} replies, the last"
            f" {said[-120:]!r}"
        )

    def _price(self, reply: Said) -> Spent:
        prompt, completion = reply.prompt_tokens or 0, reply.completion_tokens or 0
        price = prompt * self._manner.prompt_price + completion * self._manner.completion_price
        return Spent(tokens=float(prompt + completion), price=price / 1e6)

"""How a judge goes through a batch: a question an answer, two a pair, or one a group; many at a time.

What cannot be had (the judge is away, or says nothing that counts) leaves an answer unscored, and in a comparison its
group: that is infrastructure, never a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, takewhile
from typing import Protocol

from blake3 import blake3

from rollout.errors import InfrastructureError, UnscoredRows
from rollout.rewards.chat_endpoint import RequestRefused
from rollout.rewards.frames import COST
from rollout.rewards.judges.verdicts import win_shares
from rollout.types import Completion, Message, Row

COMPARISONS = ("pairs", "ranking")

Parts = Mapping[str, str]
"""What is judged, by what it is: the question, a reference answer, the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What verdicts cost."""

    tokens: float = 0.0
    """Of questions and replies, as the judge counts them."""
    price: float = 0.0
    """In the currency of the judge's prices."""

    def __add__(self, other: Spent) -> Spent:
        return Spent(tokens=self.tokens + other.tokens, price=self.price + other.price)


class Verdicts(Protocol):
    """Who judges. All raise InfrastructureError, and RequestRefused for what will never be answered."""

    def score(self, parts: Parts) -> tuple[float, Spent]:
        """How good ``answer`` is, from 0 to 1."""
        ...

    def prefer(self, parts: Parts) -> tuple[float, Spent]:
        """What ``answer A`` wins against ``answer B``, from 0 to 1."""
        ...

    def rank(self, parts: Parts, count: int) -> tuple[list[float], Spent]:
        """Strengths of ``answer 1`` to ``answer N``; equal ones are equally good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePanel:
    """A judge and how it is asked."""

    verdicts: Verdicts
    """Who judges."""
    compare: str = ""
    """``pairs`` or ``ranking``; empty: each answer by itself."""
    reference: bool = True
    """It is shown the row's answer."""
    concurrency: int = 8
    """Verdicts at a time."""

    def judge(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """``score`` in [0, 1] and what it cost, for each; a comparison takes them as one group.

        Raises UnscoredRows naming those that the judge did not score, with what the others got.
        """
        with ThreadPoolExecutor(self.concurrency) as pool:
            if self.compare:
                return self._compare(pool, prompts, completions, rows[0])
            said = list(pool.map(self._score, prompts, completions, rows))
        lost = tuple(place for place, one in enumerate(said) if isinstance(one, Exception))
        if lost:
            values = [one if isinstance(one, dict) else None for one in said]
            raise UnscoredRows(f"{len(lost)} of {len(said)}: {said[lost[0]]}", lost, values)
        return [one for one in said if isinstance(one, dict)]

    def _score(
        self, prompt: Sequence[Message], completion: Completion, row: Row
    ) -> dict[str, float] | InfrastructureError | RequestRefused:
        parts = {**self._about(prompt, row), "answer": completion.text}
        try:
            score, spent = self.verdicts.score(parts)
        except (InfrastructureError, RequestRefused) as error:
            return error
        return _told(score, spent)

    def _compare(
        self,
        pool: Executor,
        prompts: Sequence[Sequence[Message]],
        samples: Sequence[Completion],
        row: Row,
    ) -> list[dict[str, float]]:
        """Equal answers are equally good, and one of them is asked about."""
        question, answers = _apart(prompts, samples)
        texts = list(dict.fromkeys(answers))
        about = self._about(question, row)
        compare = self._pairs if self.compare == "pairs" else self._ranking
        try:
            wins, spent = compare(pool, about, texts) if len(texts) > 1 else ({}, Spent())
        except (InfrastructureError, RequestRefused) as error:
            everybody = tuple(range(len(samples)))
            raise UnscoredRows(f"a group of {len(samples)}: {error}", everybody) from error
        share = Spent(tokens=spent.tokens / len(samples), price=spent.price / len(samples))
        return [_told(one, share) for one in _win_rates(answers, wins)]

    def _pairs(
        self, pool: Executor, about: dict[str, str], texts: Sequence[str]
    ) -> tuple[dict[tuple[str, str], float], Spent]:
        """Each pair in both orders: who stands first has no advantage by it."""
        pairs = [pair for one in combinations(texts, 2) for pair in (one, one[::-1])]

        def ask(pair: tuple[str, str]) -> tuple[float, Spent]:
            parts = {**about, "answer A": pair[0], "answer B": pair[1]}
            return self.verdicts.prefer(parts)

        said = dict(zip(pairs, pool.map(ask, pairs), strict=True))
        wins = {
            (one, other): (won + 1.0 - said[other, one][0]) / 2
            for (one, other), (won, _) in said.items()
        }
        return wins, sum((spent for _, spent in said.values()), Spent())

    def _ranking(
        self, pool: Executor, about: dict[str, str], texts: Sequence[str]
    ) -> tuple[dict[tuple[str, str], float], Spent]:
        """All in one question, in an order that depends on what they say and on nothing else."""
        del pool
        shown = sorted(texts, key=lambda text: blake3(text.encode(errors="surrogatepass")).digest())
        parts = {f"answer {number}": text for number, text in enumerate(shown, start=1)}
        strengths, spent = self.verdicts.rank({**about, **parts}, len(shown))
        known = dict(zip(shown, strengths, strict=True))
        wins = {
            (one, other): win_shares([known[one], known[other]])[0]
            for one in shown
            for other in shown
            if one != other
        }
        return wins, spent

    def _about(self, prompt: Sequence[Message], row: Row) -> dict[str, str]:
        parts = {"question": "\n".join(f"{one.role}: {one.text}" for one in prompt)}
        if self.reference and row.get("answer") is not None:
            parts["reference answer"] = str(row["answer"])
        return parts


def _apart(
    prompts: Sequence[Sequence[Message]], samples: Sequence[Completion]
) -> tuple[Sequence[Message], list[str]]:
    """What all samples of a group began with, and what each made of it: its further turns and its last reply."""
    together = zip(*prompts, strict=False)
    common = sum(1 for _ in takewhile(lambda said: all(one == said[0] for one in said), together))
    answers = [
        "\n".join([*(f"{said.role}: {said.text}" for said in prompt[common:]), sample.text])
        for prompt, sample in zip(prompts, samples, strict=True)
    ]
    return prompts[0][:common], answers


def _win_rates(texts: Sequence[str], wins: dict[tuple[str, str], float]) -> list[float]:
    """The share of its siblings that each sample beats; half for one that says the same."""
    return [
        (sum(wins.get((own, other), 0.5) for other in texts) - 0.5) / (len(texts) - 1)
        for own in texts
    ]


def _told(score: float, spent: Spent) -> dict[str, float]:
    return {"score": score, f"{COST}tokens": spent.tokens, f"{COST}price": spent.price}

"""The rewards that rollout ships. Each takes a batch and returns one float per completion.

A completion, what its environment gave for it, and its row's ``answer`` are all they look at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollout.common.parameters import parse_parameters
from rollout.errors import SpecError
from rollout.rewards.code_tests.reward import CodeTests
from rollout.rewards.judges.judge import Judge
from rollout.seams import RewardModel
from rollout.types import Completion, Message, Row

Prompts = Sequence[Sequence[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """1 when the completion, stripped, is the row's answer, stripped; else 0."""

    field: str = "answer"
    """Of the row, that holds the answer."""
    ignore_case: bool = False
    """Both are compared case-folded."""

    def __call__(
        self, prompts: Prompts, completions: Sequence[Completion], rows: Sequence[Row]
    ) -> list[float]:
        """Scores of 0 or 1."""
        del prompts
        said = [completion.text.strip() for completion in completions]
        wanted = [reference(row, self.field).strip() for row in rows]
        if self.ignore_case:
            said, wanted = [one.casefold() for one in said], [one.casefold() for one in wanted]
        return [float(one == other) for one, other in zip(said, wanted, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """1 up to ``free_tokens``, then falling in a straight line to 0 at ``limit_tokens``."""

    free_tokens: int = 0
    """Tokens without a loss, >= 0."""
    limit_tokens: int = 256
    """Tokens from which on the value is 0; above ``free_tokens``."""

    def __post_init__(self) -> None:
        if not 0 <= self.free_tokens < self.limit_tokens:
            raise ValueError("expected 0 <= freeTokens < limitTokens")

    def __call__(
        self, prompts: Prompts, completions: Sequence[Completion], rows: Sequence[Row]
    ) -> list[float]:
        """Scores in [0, 1]."""
        del prompts, rows
        span = self.limit_tokens - self.free_tokens
        over = [max(0, len(c.token_ids) - self.free_tokens) for c in completions]
        return [max(0.0, 1.0 - tokens / span) for tokens in over]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """1 when the whole completion matches ``pattern`` (Python syntax, ``.`` matches newlines)."""

    pattern: str = r".*\\boxed\{[^{}]+\}.*"
    """Regular expression of the whole completion."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"pattern {self.pattern!r} is no regular expression: {error}"
            ) from error

    def __call__(
        self, prompts: Prompts, completions: Sequence[Completion], rows: Sequence[Row]
    ) -> list[float]:
        """Scores of 0 or 1."""
        del prompts, rows
        pattern = re.compile(self.pattern, re.DOTALL)
        return [float(pattern.fullmatch(c.text.strip()) is not None) for c in completions]


@dataclass(frozen=True, slots=True, kw_only=True)
class MathVerify:
    r"""1 when the completion's final answer equals the row's, as mathematics.

    The answer is the last ``\boxed{...}`` or, failing that, the last expression.
    """

    field: str = "answer"
    r"""Of the row, that holds the reference: an answer, or a whole solution that ends in ``#### 72`` (GSM8K) or in
    ``\boxed{72}``."""
    require_boxed: bool = False
    """Only a boxed answer counts."""
    parse_seconds: int = 3
    """What cannot be parsed in so many seconds is wrong."""

    def __call__(
        self, prompts: Prompts, completions: Sequence[Completion], rows: Sequence[Row]
    ) -> list[float]:
        """Scores of 0 or 1. Needs the main thread: math-verify's own time limit is a signal."""
        del prompts
        return [
            self._score(completion.text, final_answer(reference(row, self.field)))
            for completion, row in zip(completions, rows, strict=True)
        ]

    def _score(self, text: str, gold: str) -> float:
        from math_verify import parse, verify

        boxed = last_boxed(text)
        if boxed is None and self.require_boxed:
            return 0.0
        if boxed == gold:
            return 1.0
        said = (
            text if boxed is None else f"\\boxed{{{boxed}}}"
        )  # one answer: not the best of several
        target = parse(f"\\boxed{{{gold}}}", parsing_timeout=self.parse_seconds)
        found = parse(said, parsing_timeout=self.parse_seconds)
        return float(verify(target, found, timeout_seconds=self.parse_seconds))


def final_answer(solution: str) -> str:
    r"""The reference's last line after ``####``, or what is in its last ``\boxed{}``, or all of it."""
    if "####" in solution:
        return solution.rsplit("####", 1)[1].strip().replace(",", "")
    return last_boxed(solution) or solution.strip()


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` with balanced braces, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for index in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : index].strip()
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReward:
    """What the environment gave, summed over the turns; 0 where it gave nothing."""

    def __call__(
        self, prompts: Prompts, completions: Sequence[Completion], rows: Sequence[Row]
    ) -> list[float]:
        """The sums."""
        del prompts, rows
        return [sum(completion.turn_rewards) for completion in completions]


def reference(row: Row, field: str) -> str:
    """The row's reference answer. Raises KeyError naming the field and what the row has."""
    if field not in row:
        raise KeyError(f"the row has no field {field!r}; it has {', '.join(map(repr, row))}")
    return str(row[field])


KINDS: Mapping[str, Callable[..., RewardModel]] = {
    "code-tests": CodeTests,
    "environment": EnvironmentReward,
    "exact-match": ExactMatch,
    "format": Format,
    "judge": Judge,
    "length": Length,
    "math-verify": MathVerify,
}

COUNTS = {"code-tests": "score", "judge": "score"}
"""Of those that return named values the one that is the reward."""

CANNOT_HANG = frozenset({"environment", "exact-match", "length"})
"""Run in place; the others have loops of others' making inside."""


def build_builtin(name: str, given: Mapping[str, str]) -> RewardModel:
    """A builtin by name. Raises SpecError for an unknown name or parameter."""
    if name not in KINDS:
        raise SpecError(f"no reward {name!r}; there are {', '.join(sorted(KINDS))}")
    return parse_parameters(f"reward {name}", KINDS[name], given)  # pyrefly: ignore[bad-argument-type] - of the kind that its name says

"""GSM8K as lm-evaluation-harness asks and scores it: strict and flexible, both reported.

Tasks ``gsm8k`` (version 3, five shots) and ``gsm8k_cot_zeroshot`` (version 3) of ``lm_eval`` 0.4.13. ``numeric`` is
ours: the flexible answer as a number, so that ``18.00`` is 18.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from rollout.evaluations.scoring.text import INVALID, exact_match, extract
from rollout.types import Completion, Message, Row

FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One of the harness's ways to ask: ``question`` has a place for ``{question}``; shots are drawn unless 0."""

    question: str
    strict: re.Pattern[str]
    stop: tuple[str, ...]
    num_shots: int


STYLES: Mapping[str, Style] = {
    "harness": Style(
        question="Question: {question}\nAnswer:",
        strict=re.compile(r"#### (\-?[0-9\.\,]+)"),
        stop=("Question:", "</s>", "<|im_end|>"),
        num_shots=5,
    ),
    "cot-zeroshot": Style(
        question="Q: {question}\nA: Let's think step by step.",
        strict=re.compile(r"The answer is (\-?[0-9\.\,]+)."),
        stop=("Q:", "</s>", "<|im_end|>"),
        num_shots=0,
    ),
}
"""By name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gsm8kScore:
    """Scores completions: ``strict``, ``flexible``, ``numeric``, the share that is ``invalid`` for the strict pattern, and ``cut``."""

    style: str = "harness"

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """Values of 0 or 1."""
        del prompts
        return [
            score_reply(STYLES[self.style], one.text, str(row["answer"]), one.finish == "length")
            for one, row in zip(completions, rows, strict=True)
        ]


def score_reply(style: Style, reply: str, solution: str, cut: bool) -> dict[str, float]:  # noqa: FBT001 - data
    """One reply against a whole reference solution (``... #### 18``)."""
    strict, flexible = extract(style.strict, reply), extract(FLEXIBLE, reply, -1)
    return {
        "strict": float(_equal(strict, solution)),
        "flexible": float(_equal(flexible, solution)),
        "numeric": float(_same_number(flexible, solution.rsplit("####", 1)[-1])),
        "invalid": float(strict == INVALID),
        "cut": float(cut),
    }


def _equal(said: str, solution: str) -> bool:
    return exact_match(said, solution, ignored=IGNORED, case=False)


def _same_number(said: str, wanted: str) -> bool:
    numbers = [_number(text) for text in (said, wanted)]
    return numbers[0] is not None and numbers[0] == numbers[1]


def _number(text: str) -> Decimal | None:
    plain = re.sub(r"[,$\s]", "", text).rstrip(".")
    try:
        found = Decimal(plain)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None

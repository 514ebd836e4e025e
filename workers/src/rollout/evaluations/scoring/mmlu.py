"""MMLU asked for a letter: the prompt and the extraction of ``mmlu_generative`` (version 3) of lm_eval 0.4.13.

The first line of the reply, stripped, is compared with the letter; case and punctuation do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rollout.evaluations.scoring.text import INVALID, exact_match, extract
from rollout.types import Completion, Message, Row

LETTERS = "ABCD"
STOP = ("</s>", "\n")
_FIRST_LINE = re.compile(r"^(.*?)(?=\n|$)")
_TRIMMED = re.compile(r"^(.*?)\s*$")


def ask(question: str, choices: Sequence[str]) -> str:
    """The question with its four choices, up to the answer's place."""
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=True))
    return f"{question.strip()}\n{listed}\nAnswer:"


def describe(subject: str) -> str:
    """The line that stands before all else; ``subject`` is written with underscores in the data."""
    words = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about {words}.\n\n"


def ask_openly(question: str) -> str:
    """The question alone, as ``mmlu_continuation`` asks it."""
    return f"Question: {question.strip()}\nAnswer:"


def describe_openly(subject: str) -> str:
    """What stands before questions without their choices."""
    words = subject.replace("_", " ")
    return f"The following are questions (with answers) about {words}.\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class MmluScore:
    """Scores completions: ``exact``, the share that is ``invalid`` (no letter A to D said), and ``cut``."""

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """Values of 0 or 1."""
        del prompts
        return [
            {
                **score_reply(one.text, str(row["answer"])),
                "cut": float(one.finish == "length"),
            }
            for one, row in zip(completions, rows, strict=True)
        ]


def score_reply(reply: str, letter: str) -> dict[str, float]:
    """One reply against the right letter."""
    said = read_letter(reply)
    right = exact_match(said, letter, case=False, punctuation=False)
    named = any(exact_match(said, one, case=False, punctuation=False) for one in LETTERS)
    return {"exact": float(right), "invalid": float(said == INVALID or not named)}


def read_letter(reply: str) -> str:
    """What the reply says on its first line."""
    return extract(_TRIMMED, extract(_FIRST_LINE, reply).strip())

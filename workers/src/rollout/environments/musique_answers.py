"""MuSiQue's answer metrics: exact match and token F1, the best over the answer and its aliases.

Trivedi et al. 2022 (TACL, arXiv:2108.00573); rules as in the data set's own ``metrics/answer.py``: lower case, no ASCII
punctuation, no articles, single spaces. Two texts without a word are equal; one without is never.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from rollout.types import Row

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SAID = re.compile(r"^.*\banswer\s*:", re.IGNORECASE | re.DOTALL)


def normalise(text: str) -> str:
    """The text as it is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(said: str, wanted: str) -> float:
    """1 when both are the same once normalised, else 0."""
    return float(normalise(said) == normalise(wanted))


def token_f1(said: str, wanted: str) -> float:
    """The harmonic mean of precision and recall over words, with their counts."""
    ours, theirs = normalise(said).split(), normalise(wanted).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def score_answer(said: str, answers: Sequence[str]) -> dict[str, float]:
    """``em`` and ``f1``: the best over all right answers."""
    return {
        "em": max(exact(said, one) for one in answers),
        "f1": max(token_f1(said, one) for one in answers),
    }


def read_answer(reply: str) -> str:
    """What follows the last ``Answer:``, on its line; the whole reply where there is none."""
    if (found := _SAID.match(reply)) is None:
        return reply.strip()
    return reply[found.end() :].strip().partition("\n")[0].strip()


def right_answers(row: Row) -> list[str]:
    """The row's answer and its aliases."""
    aliases = row.get("answer_aliases") or []
    return [str(row["answer"]), *(str(alias) for alias in aliases)]

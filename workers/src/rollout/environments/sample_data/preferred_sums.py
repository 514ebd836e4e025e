"""Preferences on sums: an answer that carries where it must is better than one that does not.

The other answer forgets every carry or, where there is none to forget, carries into the tens for no reason:
from pairs of the first kind alone, a reward model learns that carrying is always better.

The data of the preference samples: pairs for DPO, IPO, ORPO, SimPO and reward models, single answers with
a label for KTO. A reward model that a policy will learn from must know more than one way to be wrong: it is
shown ``varied`` mistakes, of every kind that a policy may sample. Only training problems are shown, the
held-out splits never are. ``python -m rollout.environments.sample_data.preferred_sums pairs`` (or ``labels``, or
``varied``) writes JSON lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.environments.sample_data.worked_sums import careless_answer
from rollout.seeds import derive_seed
from rollout.types import Row

KEPT_PERCENT = 28
"""Share of the training problems that are shown: about 2,100, spread evenly."""


CAN_FOLLOW = "0123456789+-*= "
"""What a policy may put behind or into an answer."""


def preferred_pairs() -> Iterator[dict[str, Any]]:
    """Prompt, the right answer as ``chosen``, a careless one as ``rejected``. Fixed for ever."""
    source = ArithmeticSource(Arithmetic(), "train")
    for position, row in enumerate(source.rows(range(len(source)))):
        if derive_seed(0, "preferred-sums", position) % 100 < KEPT_PERCENT:
            right = row["answer"]
            yield {"prompt": row["prompt"], "chosen": right, "rejected": _miscarried(row)}


def labelled_answers() -> Iterator[dict[str, Any]]:
    """The same problems with one answer each, right ones (``label`` true) and careless ones in no order."""
    for position, pair in enumerate(preferred_pairs()):
        right = derive_seed(0, "labelled-sums", position) % 2 == 0
        answer = pair["chosen"] if right else pair["rejected"]
        yield {"prompt": pair["prompt"], "answer": answer, "label": right}


def varied_pairs() -> Iterator[dict[str, Any]]:
    """Every training problem twice: the right answer as ``chosen``, some mistake as ``rejected``. Fixed for ever.

    With one mistake a problem the reward model's pairs are put in order as well, and a policy finds the
    answers that were never shown.

    A quarter of the mistakes are miscarried, as above; the others, an eighth each, are a wrong digit, a place
    that is one off, another number, an answer that ends early, one that goes on, and a sign among the digits.
    """
    source = ArithmeticSource(Arithmetic(), "train")
    for position, row in enumerate(source.rows(range(len(source)))):
        for turn in range(2):
            wrong = _mistake(row, _Dice(2 * position + turn))
            yield {"prompt": row["prompt"], "chosen": row["answer"], "rejected": wrong}


class _Dice:
    """Throws that depend on the pair's number and on how many came before, and on nothing else."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._thrown = 0

    def __call__(self, sides: int) -> int:
        """0 .. sides - 1."""
        self._thrown += 1
        return derive_seed(0, "varied-sums", self._number, self._thrown) % sides


def _mistake(row: Row, dice: _Dice) -> str:
    right, kind = row["answer"], dice(8)
    if kind < 2:
        return _miscarried(row)
    place = dice(len(right))
    if kind == 2:
        return _put(right, place, str((int(right[place]) + 1 + dice(9)) % 10))
    if kind == 3:
        step = (1, -1)[dice(2)] * 10**place
        return f"{(int(right) + step) % 1000:03d}"
    if kind == 4:
        return f"{(int(right) + 1 + dice(199)) % 200:03d}"
    if kind == 5:
        return right[: 1 + dice(len(right) - 1)]
    if kind == 6:
        return right + "".join(CAN_FOLLOW[dice(len(CAN_FOLLOW))] for _ in range(1 + dice(3)))
    return _put(right, place, CAN_FOLLOW[10 + dice(len(CAN_FOLLOW) - 10)])


def _put(text: str, place: int, letter: str) -> str:
    return text[:place] + letter + text[place + 1 :]


def _miscarried(row: Row) -> str:
    """Every carry forgotten, or a ten too many where there is none to forget."""
    right, careless = row["answer"], careless_answer(row["prompt"])
    return careless if careless != right else f"{int(right) + 10:0{len(right)}d}"


WRITERS = {"pairs": preferred_pairs, "labels": labelled_answers, "varied": varied_pairs}


def main() -> None:
    """Write one of the three as JSON lines."""
    for row in WRITERS[sys.argv[1]]():
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

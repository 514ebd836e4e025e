"""Worked sums as a careless pupil writes them: what the warm start of the addition task imitates.

Three sums in four are added column by column without ever carrying (``37+45=072`` instead of ``082``);
every fourth is done with care. A model that imitates this knows the digits, the columns and, now and
then, the carry, but answers without it; what is left for reinforcement learning is to find out, from
right or wrong alone, that carrying pays. Only training problems are worked: the held-out splits are
never shown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.seeds import derive_seed

CAREFUL_PERCENT = 25
"""Share of the sums that are done with care. Fewer: reinforcement learning has less to start from."""


def add_without_carrying(left: int, right: int) -> int:
    """Add column by column and forget every carry: 37 + 45 = 72, 60 + 55 = 15. Not negative."""
    total, place = 0, 1
    while left or right:
        total += (left % 10 + right % 10) % 10 * place
        left, right, place = left // 10, right // 10, place * 10
    return total


def worked_sums() -> Iterator[tuple[str, str]]:
    """Prompt and the pupil's answer for every training problem of two-digit addition, in order.

    Fixed for ever: which sums are done with care depends on nothing but their position.
    """
    source = ArithmeticSource(Arithmetic(), "train")
    for position, row in enumerate(source.rows(range(len(source)))):
        careful = derive_seed(0, "careless-pupil", position) % 100 < CAREFUL_PERCENT
        yield row["prompt"], row["answer"] if careful else careless_answer(row["prompt"])


def careless_answer(prompt: str) -> str:
    """The answer to ``37+45=`` as written when every carry is forgotten: ``072``."""
    left, right = prompt.removesuffix("=").split("+")
    return f"{add_without_carrying(int(left), int(right)):0{len(left) + 1}d}"


def main() -> None:
    """Write the sums as JSON lines: the committed demonstrations of the samples."""
    for prompt, answer in worked_sums():
        sys.stdout.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")


if __name__ == "__main__":
    main()

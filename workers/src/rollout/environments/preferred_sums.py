"""Preferences on sums: an answer that carries where it must is better than one that does not.

The other answer forgets every carry or, where there is none to forget, carries into the tens for no reason:
from pairs of the first kind alone, a reward model learns that carrying is always better.

The data of the preference samples: pairs for DPO, IPO, ORPO, SimPO and reward models, single answers with
a label for KTO. Only training problems are shown, the held-out splits never are. ``python -m rollout.environments.preferred_sums pairs`` (or ``labels``) writes JSON lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.environments.careless import careless_answer
from rollout.noise import derive_seed

KEPT_PERCENT = 28
"""Share of the training problems that are shown: about 2,100, spread evenly."""


def preferred_pairs() -> Iterator[dict[str, Any]]:
    """Prompt, the right answer as ``chosen``, a careless one as ``rejected``. Fixed for ever."""
    source = ArithmeticSource(Arithmetic(), "train")
    for position, row in enumerate(source.rows(range(len(source)))):
        if derive_seed(0, "preferred-sums", position) % 100 < KEPT_PERCENT:
            right, careless = row["answer"], careless_answer(row["prompt"])
            wrong = careless if careless != right else f"{int(right) + 10:0{len(right)}d}"
            yield {"prompt": row["prompt"], "chosen": right, "rejected": wrong}


def labelled_answers() -> Iterator[dict[str, Any]]:
    """The same problems with one answer each, right ones (``label`` true) and careless ones in no order."""
    for position, pair in enumerate(preferred_pairs()):
        right = derive_seed(0, "labelled-sums", position) % 2 == 0
        answer = pair["chosen"] if right else pair["rejected"]
        yield {"prompt": pair["prompt"], "answer": answer, "label": right}


WRITERS = {"pairs": preferred_pairs, "labels": labelled_answers}


def main() -> None:
    """Write one of the two as JSON lines."""
    for row in WRITERS[sys.argv[1]]():
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

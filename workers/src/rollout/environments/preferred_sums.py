"""Preferences on sums: an answer that carries is better than one that forgets to.

The data of the preference samples: pairs for DPO, IPO, ORPO, SimPO and reward models, single answers with
a label for KTO. Only training problems in which the two answers differ are shown; the held-out splits
never are. ``python -m rollout.environments.preferred_sums pairs`` (or ``labels``) writes JSON lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.environments.careless import careless_answer
from rollout.noise import derive_seed

KEPT_PERCENT = 40
"""Share of the sums that carry which are shown: about 2,000, spread evenly."""


def preferred_pairs() -> Iterator[dict[str, Any]]:
    """Prompt, the answer with the carry as ``chosen``, the one without as ``rejected``. Fixed for ever."""
    source = ArithmeticSource(Arithmetic(), "train")
    for position, row in enumerate(source.rows(range(len(source)))):
        kept = derive_seed(0, "preferred-sums", position) % 100 < KEPT_PERCENT
        careless = careless_answer(row["prompt"])
        if kept and careless != row["answer"]:
            yield {"prompt": row["prompt"], "chosen": row["answer"], "rejected": careless}


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

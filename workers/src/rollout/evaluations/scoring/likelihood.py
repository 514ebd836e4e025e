"""Multiple choice decided by log-likelihood, as lm_eval 0.4.13 decides it (``lm_eval/api/task.py``, ``multiple_choice``).

The likeliest choice is the answer, the first of equals: of the sums of log-probabilities (``acc``), of the sums over the
choice's characters (``acc_norm``), and of the sums over its bytes in UTF-8 (``acc_bytes``). The space before a choice is
scored, and counts in no length. In four letters all three agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout.types import Completion, Message, Row

NORMS = ("acc", "acc_norm", "acc_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScore:
    """Scores completions of a request with choices; a row has ``continuations`` and the place that is ``right``."""

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """``acc``, ``acc_norm`` and ``acc_bytes``, 0 or 1, and ``logprob_0``... in nats. Raises ValueError without scores."""
        del prompts
        return [_score(one, row) for one, row in zip(completions, rows, strict=True)]


def _score(completion: Completion, row: Row) -> dict[str, float]:
    sums, choices = completion.choice_logprobs, [one[1:] for one in row["continuations"]]
    if len(sums) != len(choices):
        raise ValueError(
            f"expected a log-likelihood for each of {len(choices)} choices, got {len(sums)}:"
            " this suite needs an engine that scores given tokens (embedded)"
        )
    lengths = [(1, len(one), len(one.encode())) for one in choices]
    said = [
        float(
            choose([total / by[norm] for total, by in zip(sums, lengths, strict=True)])
            == row["right"]
        )
        for norm in range(len(NORMS))
    ]
    logprobs = {f"logprob_{place}": total for place, total in enumerate(sums)}
    return {**dict(zip(NORMS, said, strict=True)), **logprobs}


def choose(values: Sequence[float]) -> int:
    """The place of the largest, the first of equals."""
    return max(range(len(values)), key=values.__getitem__)

"""Scores of MuSiQue's answers, as a suite counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout.environments.musique_answers import read_answer, right_answers, score_answer
from rollout.types import Completion, Message, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class MusiqueScore:
    """Scores completions: ``em``, ``f1`` and ``cut``."""

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """Values in [0, 1]."""
        del prompts
        return [
            {
                **score_answer(read_answer(one.text), right_answers(row)),
                "cut": float(one.finish == "length"),
            }
            for one, row in zip(completions, rows, strict=True)
        ]

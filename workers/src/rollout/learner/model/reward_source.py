"""A reward model as a source of reward: scores each answer after its prompt, in a process of its own.

Every prompt's answers are one computation of their own, so that no score depends on what else is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch

from rollout.learner.model.scorer import answer_scores, load_scorer
from rollout.learner.objectives.preference.data import answer_ids
from rollout.models.shapes import read_shape
from rollout.rendering import build_renderer
from rollout.types import Completion, Message, Row


class ModelReward:
    """The score of the reward model in ``path``, for each completion; ``template`` as ``model.chatTemplate``.

    Raises SpecError when the folder holds no reward model.
    """

    def __init__(self, path: str, template: str = "", threads: str = "1") -> None:
        torch.set_num_threads(int(threads))
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = load_scorer(Path(path)).to(self._device).requires_grad_(requires_grad=False)
        self._renderer = build_renderer(Path(path), template or None)
        self._context = read_shape(Path(path)).context

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[float]:
        """One score per completion. Raises ValueError for what does not fit the model's context."""
        del rows
        scores: list[float] = []
        pairs = zip(map(tuple, prompts), completions, strict=True)
        for messages, group in groupby(pairs, key=lambda pair: pair[0]):
            scores += self._group(messages, [completion.text for _, completion in group])
        return scores

    def _group(self, messages: tuple[Message, ...], texts: Sequence[str]) -> list[float]:
        prompt_ids = self._renderer.render_prompt(messages)
        answers = [answer_ids(messages, prompt_ids, text, self._renderer) for text in texts]
        longest = len(prompt_ids) + max(map(len, answers))
        if longest > self._context:
            raise ValueError(
                f"prompt and answer have {longest} tokens, the reward model's context holds"
                f" {self._context}; lower sampling.maxNewTokens"
            )
        return answer_scores(self._model, [(prompt_ids, answers)], self._device).tolist()

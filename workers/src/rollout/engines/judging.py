"""A judge whose weights are on this machine: it is asked for nothing but how likely it is to say each grade.

The score is the mean of the grades, each as likely as the model finds it (G-Eval, arXiv 2303.16634, section 3); of a pair,
how much likelier A is than B. Nothing is sampled and every question is a computation of its own, so that an answer's score
depends on weights and texts alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from rollout.engines.embedded.build import find_device
from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.models.shapes import read_shape
from rollout.rendering import build_renderer
from rollout.rewards.judges.panel import JudgePanel, Parts, Spent
from rollout.rewards.judges.verdicts import build_question
from rollout.types import Completion, GenerateRequest, Message, Row, SamplingParams, WeightVersion

GRADES = tuple("0123456789")
SIDES = ("A", "B")
GRADE = (
    "Judge the answer to the question below. Reply with one digit from 0 (useless) to 9 (perfect)"
    " and nothing else."
)
BETTER = (
    "Which of the two answers to the question below is better? Reply with one letter, A or B, and"
    " nothing else."
)


class ModelJudge:
    """The reward ``judge`` of the model in ``path``, as the process that runs one source of reward loads it.

    ``instructions`` replace ours and ask for the same single character. Raises SpecError for a model whose tokenizer has no
    token of its own for a grade, EngineError for weights that cannot be loaded.
    """

    def __init__(
        self,
        path: str,
        instructions: str = "",
        reference: str = "true",
        per_group: str = "false",
        deadline_seconds: str = "54",
        threads: str = "1",
    ) -> None:
        torch.set_num_threads(int(threads))
        self._seconds = float(deadline_seconds)
        self._grades = Grades(Path(path), instructions, int(threads))
        self._panel = JudgePanel(
            verdicts=self._grades,
            compare="pairs" if per_group == "true" else "",
            reference=reference == "true",
            concurrency=1,
        )

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """``score`` in [0, 1] with the tokens that were read; ``per_group``: what each of one group wins.

        Raises UnscoredRows for what was not through in time, ValueError for what does not fit the context.
        """
        self._grades.until = time.monotonic() + self._seconds
        return self._panel.judge(prompts, completions, rows)


class Grades:
    """``Verdicts`` by likelihood, of the model in ``folder``. ``until``: no question is begun later, on the monotonic clock."""

    def __init__(self, folder: Path, instructions: str, threads: int) -> None:
        self._renderer = build_renderer(folder)
        self._context = read_shape(folder).context
        self._instructions = instructions
        self._choices = {one: self._encoded(one) for one in (*GRADES, *SIDES)}
        self._engine = EmbeddedEngine(folder, num_threads=threads, device=find_device())
        self._loop = asyncio.new_event_loop()
        version = WeightVersion(lineage=0, step=0, digest="", object="")
        self._loop.run_until_complete(self._engine.load(version, folder))
        self.until = math.inf

    def score(self, parts: Parts) -> tuple[float, Spent]:
        """The mean grade, as a share of the best."""
        shares, spent = self._ask(GRADE, parts, GRADES)
        return math.fsum(n * one for n, one in enumerate(shares)) / (len(GRADES) - 1), spent

    def prefer(self, parts: Parts) -> tuple[float, Spent]:
        """How likely A is, of the two."""
        shares, spent = self._ask(BETTER, parts, SIDES)
        return shares[0], spent

    def rank(self, parts: Parts, count: int) -> tuple[list[float], Spent]:
        """Never asked for: such a judge compares pairs."""
        raise AssertionError(f"a ranking of {count} answers, of {', '.join(parts)}")

    def _ask(self, ours: str, parts: Parts, grades: Sequence[str]) -> tuple[list[float], Spent]:
        """How likely each grade is, of these."""
        if time.monotonic() > self.until:
            raise InfrastructureError("the judge was not through in nine tenths of timeoutSeconds")
        question = build_question(self._instructions or ours, parts)
        prompt = self._renderer.render_prompt((Message(role="user", content=question),))
        if len(prompt) >= self._context:
            raise ValueError(
                f"a question to the judge has {len(prompt)} tokens, its context holds {self._context}; lower"
                " sampling.maxNewTokens, or take a judge with a longer context"
            )
        request = GenerateRequest(
            prompt_ids=tuple(prompt),
            seeds=(0,),
            sampling=SamplingParams(max_new_tokens=1),
            choices=tuple(self._choices[one] for one in grades),
        )
        ((found,),) = self._loop.run_until_complete(self._engine.generate([request]))
        top = max(found.choice_logprobs)
        weights = [math.exp(one - top) for one in found.choice_logprobs]
        return [one / math.fsum(weights) for one in weights], Spent(tokens=float(len(prompt)))

    def _encoded(self, grade: str) -> tuple[int, ...]:
        try:
            ids = tuple(self._renderer.tokenizer.encode(grade))
        except DataError as error:
            raise SpecError(
                f"this model cannot judge, it has no token for {grade!r}: name another as judge.model"
            ) from error
        if len(ids) != 1:
            raise SpecError(
                f"this model cannot judge, it writes {grade!r} in {len(ids)} tokens, expected one: name another as judge.model"
            )
        return ids

"""Asks a server the prompts of suites, many at a time, scores what it says, and sums up.

A prompt that the server refuses is left out and counted; one that it does not answer is asked again by a later call: after a
chunk without any answer the measuring ends, and what is there stays. Nothing that a network did is scored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from rollout.environments.prompts import first_state
from rollout.errors import InfrastructureError
from rollout.evaluations.metrics import measure
from rollout.evaluations.remote.items import AskedPrompt, ItemFile, ServedAnswer
from rollout.evaluations.remote.likelihood import Form, find_form, score_choices
from rollout.evaluations.statistics import summarise
from rollout.evaluations.suites import Suite
from rollout.rendering.choices import choice_text
from rollout.rewards.chat_endpoint import (
    Asked,
    Endpoint,
    RequestRefused,
    Said,
    ask,
    open_client,
)
from rollout.rewards.pipeline import RewardPipeline
from rollout.seams import DataSource
from rollout.turns import State
from rollout.types import Completion, Message, Row

log = logging.getLogger(__name__)
CHUNKS = 4
"""Prompts that are asked and scored together, in calls at a time."""
NEW_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """How each prompt is asked; ``max_tokens`` None: as the suite says."""

    samples: int = 1
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    concurrency: int = 8


def measure_suite(
    suite: Suite, source: DataSource, endpoint: Endpoint, settings: MeasureSettings, items: ItemFile
) -> dict[str, Any]:
    """The suite's summary, as a run's. Raises InfrastructureError where the server does not answer.

    SpecError for a suite of given answers whose log-probabilities the server does not tell, DataError for a row of it.
    """
    left = [
        place for place in range(len(source)) if (suite.name, suite.split, place) not in items.done
    ]
    pipeline = RewardPipeline(suite.rewards)
    try:
        with open_client(settings.concurrency) as client:
            form = find_form(client, endpoint) if left and suite.is_scored else None
            asking = _Asking(suite, source, endpoint, settings, client, form)
            for start in range(0, len(left), settings.concurrency * CHUNKS):
                chunk = left[start : start + settings.concurrency * CHUNKS]
                items.append(asking.ask_chunk(chunk, pipeline))
    finally:
        pipeline.close()
    return sum_up(suite, [items.done.get((suite.name, suite.split, n)) for n in range(len(source))])


@dataclass(frozen=True, slots=True)
class _Asking:
    suite: Suite
    source: DataSource
    endpoint: Endpoint
    settings: MeasureSettings
    client: httpx.Client
    form: Form | None

    def ask_chunk(self, places: Sequence[int], pipeline: RewardPipeline) -> list[AskedPrompt]:
        rows = self.source.rows(places)
        environment = self.suite.environment()
        states = [asyncio.run(first_state(environment, row)) for row in rows]
        prompts = [state.messages for state in states]
        with ThreadPoolExecutor(self.settings.concurrency) as pool:
            found = list(pool.map(self._ask, places, states))
        lost = [one for one in found if isinstance(one, InfrastructureError)]
        if len(lost) == len(found):
            raise InfrastructureError(f"no prompt of {len(found)} was answered: {lost[0]}")
        for error in lost:
            log.warning("suite=%s a prompt waits for another call: %s", self.suite.name, error)
        kept = [
            (place, row, prompt, said)
            for place, row, prompt, said in zip(places, rows, prompts, found, strict=True)
            if not isinstance(said, InfrastructureError)
        ]
        return self._score(kept, pipeline)

    def _ask(self, place: int, state: State) -> list[Said] | RequestRefused | InfrastructureError:
        messages = [{"role": one.role, "content": one.text} for one in state.messages]
        try:
            if self.form is not None:
                text = choice_text(state.messages)
                return [score_choices(self.client, self.endpoint, self.form, text, state.choices)]
            return [
                ask(self.client, self.endpoint, messages, self._asked(place, sample))
                for sample in range(self.settings.samples)
            ]
        except (RequestRefused, InfrastructureError) as error:
            return error

    def _asked(self, place: int, sample: int) -> Asked:
        limit = self.settings.max_tokens or self.suite.sampling.max_new_tokens or NEW_TOKENS
        seed = (self.settings.seed * 1_000_003 + place * 4_099 + sample) % (1 << 31)
        return Asked(
            max_tokens=limit,
            temperature=self.settings.temperature,
            seed=seed if self.settings.temperature > 0 else None,
            stop=self.suite.sampling.stop[:4],
        )

    def _score(
        self,
        kept: Sequence[tuple[int, Row, Sequence[Message], list[Said] | RequestRefused]],
        pipeline: RewardPipeline,
    ) -> list[AskedPrompt]:
        flat = [
            (prompt, said, row)
            for _, row, prompt, answers in kept
            if not isinstance(answers, RequestRefused)
            for said in answers
        ]
        scored = iter(
            pipeline.score(
                [prompt for prompt, _, _ in flat],
                [_completion(said) for _, said, _ in flat],
                [row for _, _, row in flat],
            )
        )
        return [self._item(one, scored) for one in kept]

    def _item(self, one: tuple[int, Row, Sequence[Message], Any], scored: Any) -> AskedPrompt:
        place, row, prompt, answers = one
        return AskedPrompt(
            suite=self.suite.name,
            split=self.suite.split,
            place=place,
            prompt="\n".join(message.text for message in prompt),
            wanted=str(row.get("answer", "")),
            refused=str(answers) if isinstance(answers, RequestRefused) else "",
            answers=()
            if isinstance(answers, RequestRefused)
            else tuple(_answer(said, *next(scored)) for said in answers),
        )


def _answer(said: Said, reward: float, rewards: Mapping[str, float]) -> ServedAnswer:
    return ServedAnswer(
        text=said.text,
        finish=said.finish,
        reward=reward,
        rewards=rewards,
        tokens=said.completion_tokens,
    )


def _completion(said: Said) -> Completion:
    finish = "length" if said.finish == "length" else "stop"
    tokens = said.completion_tokens or 0
    return Completion(
        token_ids=(0,) * min(tokens, 1 << 20),
        logprobs=(),
        finish=finish,
        text=said.text,
        choice_logprobs=said.choice_logprobs,
    )


def sum_up(suite: Suite, items: Sequence[AskedPrompt | None]) -> dict[str, Any]:
    """The same names as a run's summary has."""
    answered = [one for one in items if one is not None and one.answers]
    lengths = [one.tokens for item in answered for one in item.answers if one.tokens is not None]
    summary: dict[str, Any] = {}
    if answered:
        summary = summarise([[one.reward for one in item.answers] for item in answered])
        parts = [[one.rewards for one in item.answers] for item in answered]
        summary |= measure(suite.metrics, parts)
    return {
        **summary,
        "num_prompts": len(answered),
        "num_excluded": len(items) - len(answered),
        "tokens_mean": sum(lengths) / len(lengths) if lengths else 0.0,
    }

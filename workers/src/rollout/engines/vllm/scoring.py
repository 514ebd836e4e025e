"""How likely given replies are, from what vLLM says of its prompts: one request for each reply, prompt and reply together.

Pure. The server computes log-probabilities of a prompt afresh, whatever its cache has, and at temperature 1; it has to
sample one token behind them, which is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.engines.vllm.command import POLICY
from rollout.engines.vllm.wire import Choice, parse_spans
from rollout.errors import EngineError
from rollout.types import Completion, GenerateRequest, VersionSpan


class PromptLogprob(msgspec.Struct, frozen=True):
    """Of one token of a prompt."""

    logprob: float


class ScoredAnswer(msgspec.Struct, frozen=True):
    """What ``POST /inference/v1/generate`` answers; the prompt's first token has no log-probability."""

    choices: list[Choice]
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenScore:
    """Log-probabilities of a given reply's tokens, in nats, under one version."""

    logprobs: tuple[float, ...]
    lineage: int
    step: int


def build_score_body(
    request: GenerateRequest, choice: Sequence[int], model: str = POLICY
) -> dict[str, Any]:
    """The JSON body that has one given reply scored behind the request's prompt."""
    return {
        "model": model,
        "token_ids": (*request.prompt_ids, *choice),
        "sampling_params": {
            "n": 1,
            "temperature": 0.0,
            "max_tokens": 1,
            "ignore_eos": True,
            "detokenize": False,
            "prompt_logprobs": 0,
        },
    }


def parse_score(answer: bytes, num_prompt: int, choice: Sequence[int]) -> GivenScore | None:
    """The score of a reply behind ``num_prompt`` tokens; None where it was aborted. Raises EngineError."""
    try:
        found = msgspec.json.decode(answer, type=ScoredAnswer)
    except UNREADABLE as error:
        raise EngineError(f"vLLM's answer is not understood: {error}") from error
    if len(found.choices) != 1:
        raise EngineError(f"vLLM returned {len(found.choices)} completions where one was asked for")
    [sampled] = found.choices
    if sampled.finish_reason == "abort":
        return None
    [span] = parse_spans(sampled.weight_versions or [], 1) or [None]
    told = (found.prompt_logprobs or [])[num_prompt:]
    if span is None or len(told) != len(choice):
        raise EngineError(
            f"vLLM told log-probabilities of {len(told)} tokens of {len(choice)} that were given"
        )
    logprobs = tuple(_of(token, one) for token, one in zip(choice, told, strict=True))
    return GivenScore(logprobs=logprobs, lineage=span.lineage, step=span.step)


def choose_likeliest(
    choices: Sequence[tuple[int, ...]], scores: Sequence[GivenScore]
) -> Completion:
    """The choice of the highest sum, the first of equals. Raises EngineError for scores of several versions."""
    versions = {(one.lineage, one.step) for one in scores}
    if len(versions) != 1:
        raise EngineError(f"vLLM scored {len(choices)} choices with the versions {versions}")
    [(lineage, step)] = versions
    sums = tuple(math.fsum(one.logprobs) for one in scores)
    best = max(range(len(sums)), key=sums.__getitem__)
    end = len(choices[best])
    return Completion(
        token_ids=choices[best],
        logprobs=scores[best].logprobs,
        finish="stop",
        spans=(VersionSpan(start=0, end=end, lineage=lineage, step=step),),
        choice_logprobs=sums,
    )


def _of(token: int, told: dict[int, PromptLogprob] | None) -> float:
    if told is None or token not in told or not math.isfinite(told[token].logprob):
        raise EngineError(f"vLLM told no log-probability of the given token {token}")
    return told[token].logprob

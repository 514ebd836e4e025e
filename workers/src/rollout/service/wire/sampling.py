"""A sampling call as clients send it: what is drawn, what is scored beside it, and what of it is not offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from rollout.seeds import derive_seed
from rollout.service.calls import CallTensor, SampleCall
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.training.bases import TrainingBase
from rollout.service.wire.conversions import SEED_MAX, number_of
from rollout.service.wire.requests import ChunkKind, SampleAsk, SamplingAsk, TextChunk, read_body

SAMPLES_MAX = 1024
CHUNKS_MAX = 4096
TOP_MAX = 128
TOP_K_MAX = 2**31 - 1
STOPS_MAX = 64
"""Texts or tokens that end a completion; each of them is looked for behind every token."""
SCORES_MAX = 2**28
"""Log-probabilities that one call may look at: 1 GiB of them."""


def read_sample(ask: SampleAsk, base: TrainingBase, request_id: str) -> SampleCall:
    """What to sample; seeds that are not said come from the request's id. Raises CallRefused."""
    _refuse_unoffered(ask)
    if len(ask.prompt.chunks) > CHUNKS_MAX:
        raise CallRefused(
            f"prompt.chunks: expected up to {CHUNKS_MAX} parts, got {len(ask.prompt.chunks)}; send tokens in one"
        )
    prompt = [token for chunk in ask.prompt.chunks for token in _read_chunk(bytes(chunk))]
    bad = next((token for token in prompt if not 0 <= token < base.vocab), None)
    if not prompt or bad is not None:
        raise CallRefused(
            f"prompt: expected tokens of the vocabulary of {base.vocab}, got {bad if prompt else 'none'}"
        )
    if len(prompt) >= base.context:
        raise CallRefused(
            f"prompt: expected 1 to {base.context - 1} tokens, as the base model sees {base.context} at once, got"
            f" {len(prompt)} tokens; send the last of them"
        )
    params = ask.sampling_params
    left = base.context - len(prompt)
    max_tokens = left if params.max_tokens is None else params.max_tokens
    if not 1 <= max_tokens <= left:
        raise CallRefused(
            f"sampling_params.max_tokens: expected 1 to {left} (the base model's {base.context} without the"
            f" prompt's {len(prompt)}), got {max_tokens}"
        )
    stop_ids, stop = _stops(params, base)
    seed = number_of(request_id) if params.seed is None else params.seed
    return SampleCall(
        prompt=tuple(prompt),
        seeds=tuple(derive_seed(seed, "service", 0, i) for i in range(ask.num_samples)),
        max_tokens=max_tokens,
        temperature=params.temperature,
        stop_ids=stop_ids,
        stop=stop,
        prompt_logprobs=bool(ask.prompt_logprobs),
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        **read_scoring(ask, base, prompt, max_tokens),
    )


def _read_chunk(chunk: bytes) -> list[int]:
    kind = read_body(chunk, ChunkKind).type
    if kind != "encoded_text":
        raise not_offered(f"prompt: a part of type {kind!r}", "send tokens")
    return read_body(chunk, TextChunk).tokens


def _refuse_unoffered(ask: SampleAsk) -> None:
    asked = {
        "prompt_alt_tokens_k": ask.prompt_alt_tokens_k != 0,
        "record_stability_info": bool(ask.record_stability_info),
    }
    found = next((name for name, is_asked in asked.items() if is_asked), None)
    if found is not None:
        raise not_offered(
            found,
            "leave it out: prompt_logprobs, topk_prompt_logprobs and target_prompt_logprobs score the prompt",
        )
    if not 1 <= ask.num_samples <= SAMPLES_MAX:
        raise CallRefused(f"num_samples: expected 1 to {SAMPLES_MAX}, got {ask.num_samples}")
    params = ask.sampling_params
    if not 0 <= params.temperature < float("inf"):
        raise CallRefused(
            f"sampling_params.temperature: expected 0 or more, got {params.temperature}"
        )
    _check_cuts(params)
    if params.seed is not None and not 0 <= params.seed <= SEED_MAX:
        raise CallRefused(f"sampling_params.seed: expected 0 to {SEED_MAX}, got {params.seed}")


def _check_cuts(params: SamplingAsk) -> None:
    if params.top_k != -1 and not 1 <= params.top_k <= TOP_K_MAX:
        raise CallRefused(
            f"sampling_params.top_k: expected -1 (all tokens) or 1 to {TOP_K_MAX}, got {params.top_k}"
        )
    if not 0 < params.top_p <= 1:
        raise CallRefused(f"sampling_params.top_p: expected 0 < top_p <= 1, got {params.top_p}")


def _stops(params: SamplingAsk, base: TrainingBase) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """End tokens and stop texts; texts are beside the base's end tokens, tokens in their stead."""
    stop, end_ids = params.stop, base.end_ids
    if stop is None:
        return tuple(end_ids), ()
    said = [stop] if isinstance(stop, str) else stop
    if len(said) > STOPS_MAX:
        raise CallRefused(
            f"sampling_params.stop: expected up to {STOPS_MAX} texts or tokens, got {len(said)}"
        )
    texts = tuple(one for one in said if isinstance(one, str))
    tokens = tuple(one for one in said if isinstance(one, int))
    if texts and tokens:
        raise CallRefused("sampling_params.stop: expected texts or tokens, got both; give one kind")
    bad = next((token for token in tokens if not 0 <= token < base.vocab), None)
    if bad is not None:
        raise CallRefused(
            f"sampling_params.stop: token {bad} is outside the vocabulary of {base.vocab}"
        )
    if not all(texts):
        raise CallRefused("sampling_params.stop: an empty text would end everything; leave it out")
    return (tuple(end_ids), texts) if texts else (tokens, ())


def read_scoring(
    ask: SampleAsk, base: TrainingBase, prompt: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    """What is scored beside the completions, as fields of a SampleCall. Raises CallRefused."""
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs"):
        k = getattr(ask, name)
        if not 0 <= k <= min(TOP_MAX, base.vocab):
            raise CallRefused(f"{name}: expected 0 to {min(TOP_MAX, base.vocab)}, got {k}")
    of_prompt = ask.topk_prompt_logprobs or ask.target_prompt_logprobs is not None
    longest = len(prompt) + (max_tokens if ask.topk_sample_logprobs else 0)
    if (of_prompt or ask.topk_sample_logprobs) and longest * base.vocab > SCORES_MAX:
        raise CallRefused(
            f"{longest} tokens over a vocabulary of {base.vocab} are {longest * base.vocab} log-probabilities, of which"
            f" {SCORES_MAX} fit: score a shorter prompt, or sample fewer tokens"
        )
    last_n = ask.prompt_logprobs_last_n
    if last_n is not None and not (ask.prompt_logprobs and 1 <= last_n < len(prompt)):
        raise CallRefused(
            f"prompt_logprobs_last_n: expected 1 to {len(prompt) - 1} beside prompt_logprobs, got {last_n}"
        )
    return {
        "last_n": last_n or 0,
        "top_prompt": ask.topk_prompt_logprobs,
        "top_sampled": ask.topk_sample_logprobs,
        "targets": _read_targets(ask.target_prompt_logprobs, base, len(prompt)),
    }


def _read_targets(
    said: Mapping[str, Any] | None, base: TrainingBase, num_tokens: int
) -> CallTensor | None:
    name = "target_prompt_logprobs"
    if said is None:
        return None
    if said.get("sparse_crow_indices") is not None:
        raise not_offered(f"{name}: a sparse tensor", "send it dense, with -1 for nothing")
    shape, data = said.get("shape", []), said.get("data", [])
    fits = (
        _is_whole(shape)
        and _is_whole(data)
        and len(shape) == 2
        and shape[0] == num_tokens - 1
        and 1 <= shape[1] <= TOP_MAX
        and len(data) == shape[0] * shape[1]
    )
    if not fits:
        raise CallRefused(
            f"{name}: expected token ids of shape [{num_tokens - 1}, 1 to {TOP_MAX}], got shape {shape}"
        )
    bad = next((one for one in data if not -1 <= one < base.vocab), None)
    if bad is not None:
        raise CallRefused(f"{name}: token {bad} is outside the vocabulary of {base.vocab}")
    return CallTensor("int64", tuple(shape), np.asarray(data, "<i8").tobytes())


def _is_whole(said: Any) -> TypeGuard[list[int]]:
    return isinstance(said, list) and all(type(one) is int for one in said)

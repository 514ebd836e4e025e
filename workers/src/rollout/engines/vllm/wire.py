"""What goes over the engine's socket: requests built from, and answers parsed to, rollout's own types.

Pure. An answer is parsed as untrusted input: every token needs its log-probability and its weight
version, or the sample is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.engines.vllm.command import POLICY
from rollout.errors import EngineError, SpecError
from rollout.types import Completion, Finish, GenerateRequest, VersionSpan, WeightVersion
from rollout_vllm.stops import STOP_TEXTS

TEMPERATURE_MIN = 0.01
"""vLLM silently raises a positive temperature below this; 0 is greedy."""
TEMPERATURE_MAX = 2.0

FINISHES: dict[str | None, Finish] = {"stop": "stop", "length": "length", "abort": "aborted"}


class TokenLogprob(msgspec.Struct, frozen=True):
    """One sampled token."""

    token_id: int
    logprob: float


class Logprobs(msgspec.Struct, frozen=True):
    """The sampled tokens in order."""

    content: list[TokenLogprob] | None = None


class Span(msgspec.Struct, frozen=True):
    """Tokens ``[start, end)`` were sampled from the version labelled ``version``."""

    version: str
    start: int
    end: int


class Choice(msgspec.Struct, frozen=True):
    """One completion."""

    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    weight_versions: list[Span] | None = None


class GenerateAnswer(msgspec.Struct, frozen=True):
    """What ``POST /inference/v1/generate`` answers; unknown fields are ignored."""

    choices: list[Choice]


class LoadedWeights(msgspec.Struct, frozen=True):
    """What one worker says of the tensors it handed to its loader: in all, and the last time."""

    digest: str
    num_tensors: int
    num_loaded: int = 0


class LoadAnswer(msgspec.Struct, frozen=True):
    """What ``POST /collective_rpc`` answers: one entry per worker of the engine."""

    results: list[LoadedWeights]


def build_generate_body(
    request: GenerateRequest, seed: int, model: str = POLICY, tokenizer: Path | None = None
) -> dict[str, Any]:
    """The JSON body that asks for one sample of a request. Raises SpecError for a temperature vLLM would change.

    ``model`` is what the server calls the policy: itself, or an adapter. ``tokenizer``: the file with which the
    server finds stop texts (``rollout_vllm.ends``); None: it looks for none.

    End tokens are ours alone (``ignore_eos``); ``logprobs`` 0 means the sampled token's only.
    """
    sampling = request.sampling
    temperature = sampling.temperature
    if temperature and not TEMPERATURE_MIN <= temperature <= TEMPERATURE_MAX:
        raise SpecError(
            f"sampling temperature {temperature}: vLLM takes 0 (greedy) or "
            f"{TEMPERATURE_MIN} to {TEMPERATURE_MAX}"
        )
    if sampling.top_k or sampling.top_p != 1.0:
        raise SpecError(
            f"sampling top_k {sampling.top_k}, top_p {sampling.top_p}: logprobs of runs are of the whole"
            " distribution here; leave them out"
        )
    return {
        "model": model,
        "token_ids": request.prompt_ids,
        "sampling_params": {
            "n": 1,
            "seed": seed,
            "temperature": temperature,
            "max_tokens": sampling.max_new_tokens,
            "min_tokens": sampling.min_new_tokens,
            "stop_token_ids": sampling.stop_token_ids,
            "ignore_eos": True,
            "detokenize": False,
            "logprobs": 0,
            **_stop_arguments(request, tokenizer),
        },
    }


def _stop_arguments(request: GenerateRequest, tokenizer: Path | None) -> dict[str, Any]:
    """What makes the server end a sample at a stop text, in vLLM's field for extensions."""
    if tokenizer is None or not request.sampling.stop:
        return {}
    said = {
        "stop": request.sampling.stop,
        "begun": request.prompt_ids[len(request.prompt_ids) - request.begun :],
        "tokenizer": str(tokenizer),
    }
    return {"extra_args": {STOP_TEXTS: said}}


def build_update_body(
    weights: Path, changed: frozenset[str] | None, base: WeightVersion | None
) -> dict[str, Any]:
    """The JSON body that has every worker load a safetensors file (``rollout_vllm.transfer.FileUpdate``)."""
    update: dict[str, Any] = {"path": str(weights.absolute())}
    if changed is not None and base is not None:
        update |= {"changed": sorted(changed), "base": base.digest}
    return {"update_info": update}


def parse_completion(answer: bytes) -> Completion:
    """The one completion of an answer. Raises EngineError when anything in it is missing or inconsistent."""
    choice = _parse_choice(answer)
    tokens = tuple(choice.token_ids or ())
    content = (choice.logprobs.content if choice.logprobs else None) or []
    if tuple(item.token_id for item in content) != tokens:
        raise EngineError(
            f"vLLM returned {len(tokens)} tokens but log-probabilities of {len(content)} others"
        )
    if choice.finish_reason not in FINISHES:
        raise EngineError(f"vLLM ended a sample with the unknown reason {choice.finish_reason!r}")
    return Completion(
        token_ids=tokens,
        logprobs=tuple(item.logprob for item in content),
        finish=FINISHES[choice.finish_reason],
        spans=parse_spans(choice.weight_versions or [], len(tokens)),
    )


def parse_loaded(answer: bytes) -> str:
    """The digest of the tensors that every worker handed to its loader. Raises EngineError."""
    try:
        results = msgspec.json.decode(answer, type=LoadAnswer).results
    except UNREADABLE as error:
        raise EngineError(f"vLLM's answer to a weight load is not understood: {error}") from error
    digests = {result.digest for result in results}
    if len(digests) != 1:
        raise EngineError(f"vLLM's {len(results)} workers loaded different tensors: {digests}")
    return digests.pop()


def label_version(version: WeightVersion) -> str:
    """How a version is called inside vLLM."""
    return f"{version.lineage}.{version.step}"


def parse_spans(spans: list[Span], num_tokens: int) -> tuple[VersionSpan, ...]:
    """Spans in rollout's names. Raises EngineError unless they cover ``[0, num_tokens)`` in order."""
    parsed = tuple(_parse_span(span) for span in spans if span.end > span.start)
    edges = [0, *(span.end for span in parsed)]
    if [span.start for span in parsed] != edges[:-1] or edges[-1] != num_tokens:
        raise EngineError(f"vLLM's version spans {spans} do not cover {num_tokens} tokens")
    return parsed


def _parse_span(span: Span) -> VersionSpan:
    lineage, _, step = span.version.partition(".")
    if not (lineage.isdecimal() and step.isdecimal()):
        raise EngineError(f"vLLM sampled from the version {span.version!r}, which nobody loaded")
    return VersionSpan(start=span.start, end=span.end, lineage=int(lineage), step=int(step))


def _parse_choice(answer: bytes) -> Choice:
    try:
        choices = msgspec.json.decode(answer, type=GenerateAnswer).choices
    except UNREADABLE as error:
        raise EngineError(f"vLLM's answer is not understood: {error}") from error
    if len(choices) != 1:
        raise EngineError(f"vLLM returned {len(choices)} completions where one was asked for")
    return choices[0]

"""What a service answers. ``chain`` is the value of the model's hash chain behind the call: equal calls, equal chains.

Axes: N tokens of a datum or of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from rollout.client.data import TensorData

NO_LOGPROB = np.float32(-99999.0)
"""Where a place has fewer likely tokens than were asked for."""


@dataclass(frozen=True, kw_only=True)
class ForwardBackwardOutput:
    """Of each datum ``logprobs`` and ``elementwise_loss`` [N]; metrics of the call."""

    loss_fn_outputs: Sequence[Mapping[str, TensorData]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    loss_fn_output_type: str = "ArrayRecord"
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class OptimStepResponse:
    """What a step did."""

    metrics: Mapping[str, float]
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class SaveWeightsResponse:
    """A state that was saved, under ``path``."""

    path: str
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class SaveWeightsForSamplerResponse:
    """Weights that were saved to sample from, under ``path``; ``digest`` is of their tensors."""

    path: str
    digest: str = ""
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadWeightsResponse:
    """A state that a model went on from."""

    path: str
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class TopkLogprobs:
    """The most likely tokens of each of N places: int32 ids and float32 logprobs [N, k], (0, -99999) where there are none."""

    token_ids: np.ndarray
    logprobs: np.ndarray

    def to_lists(self) -> list[list[tuple[int, float]] | None]:
        """Of each place its (id, logprob), most likely first; None where there are none."""
        there = self.logprobs != NO_LOGPROB
        pairs = (
            [(int(i), float(p)) for i, p, is_there in zip(*row, strict=True) if is_there]
            for row in zip(self.token_ids, self.logprobs, there, strict=True)
        )
        return [one or None for one in pairs]


@dataclass(frozen=True, kw_only=True)
class DrawnSequence:
    """One completion: int32 tokens [N], float32 logprobs [N] under the distribution that they were drawn from.

    ``topk_logprobs_np`` [N, k]: of that after temperature and before any cut, only where it was asked for.
    """

    stop_reason: Literal["length", "stop"]
    sequence_id: str
    tokens_np: np.ndarray
    logprobs_np: np.ndarray
    topk_logprobs_np: TopkLogprobs | None = None

    @cached_property
    def topk_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """The most likely tokens of each place as lists."""
        return None if self.topk_logprobs_np is None else self.topk_logprobs_np.to_lists()

    @cached_property
    def tokens(self) -> list[int]:
        """The tokens as a list."""
        return self.tokens_np.tolist()

    @cached_property
    def logprobs(self) -> list[float]:
        """The logprobs as a list."""
        return self.logprobs_np.tolist()


@dataclass(frozen=True, kw_only=True)
class SampleResponse:
    """Completions of a prompt; ``prompt_logprobs_np`` [N] only where it was asked for, NaN where there is none.

    ``topk_prompt_logprobs_np`` [N, k]; ``target_prompt_logprobs`` float32 in the shape of the ids, 0 where there was -1.
    """

    sequences: Sequence[DrawnSequence]
    prompt_logprobs_np: np.ndarray | None = None
    topk_prompt_logprobs_np: TopkLogprobs | None = None
    target_prompt_logprobs: TensorData | None = None

    @cached_property
    def topk_prompt_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """The most likely tokens in each of the prompt's places as lists."""
        found = self.topk_prompt_logprobs_np
        return None if found is None else found.to_lists()

    @cached_property
    def prompt_logprobs(self) -> list[float | None] | None:
        """The prompt's logprobs as a list, None where there is none."""
        if self.prompt_logprobs_np is None:
            return None
        return [None if np.isnan(one) else float(one) for one in self.prompt_logprobs_np]


@dataclass(frozen=True, kw_only=True)
class ModelData:
    """A base model: its name, and its tokenizer's folder on the service's machine."""

    model_name: str
    tokenizer_id: str


@dataclass(frozen=True, kw_only=True)
class GetInfoResponse:
    """A model as the service describes it."""

    model_id: str
    model_data: ModelData
    is_lora: bool
    lora_rank: int | None
    model_name: str


@dataclass(frozen=True, kw_only=True)
class SupportedModel:
    """A base model that is served."""

    model_name: str
    max_context_length: int
    trainable: bool
    sampleable: bool


@dataclass(frozen=True, kw_only=True)
class GetServerCapabilitiesResponse:
    """The base models."""

    supported_models: Sequence[SupportedModel]


@dataclass(frozen=True, kw_only=True)
class ModelStanding:
    """Where a model stands: calls that are answered, and the chain behind them."""

    model_id: str
    calls: int
    chain: str

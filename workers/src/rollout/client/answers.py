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
class DrawnSequence:
    """One completion: int32 tokens [N], float32 logprobs [N] under the distribution that they were drawn from."""

    stop_reason: Literal["length", "stop"]
    sequence_id: str
    tokens_np: np.ndarray
    logprobs_np: np.ndarray

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
    """Completions of a prompt; ``prompt_logprobs_np`` [N] only where it was asked for, NaN where there is none."""

    sequences: Sequence[DrawnSequence]
    prompt_logprobs_np: np.ndarray | None = None

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

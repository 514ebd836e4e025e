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
    """What a loss came to, datum by datum."""

    loss_fn_outputs: Sequence[Mapping[str, TensorData]]
    """In the order of the data: ``logprobs`` and ``elementwise_loss`` [N]."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the whole call, by name."""
    loss_fn_output_type: str = "ArrayRecord"
    """A word of the clients' protocol; always this one."""
    chain: str = ""
    """Behind the call."""


@dataclass(frozen=True, kw_only=True)
class OptimStepResponse:
    """What a step did."""

    metrics: Mapping[str, float]
    """Of the step, by name."""
    chain: str = ""
    """Behind the step."""


@dataclass(frozen=True, kw_only=True)
class SaveWeightsResponse:
    """A state that was saved."""

    path: str
    """``tinker://MODEL/weights/NAME``; what ``load_state`` takes."""
    chain: str = ""
    """Behind the save."""


@dataclass(frozen=True, kw_only=True)
class SaveWeightsForSamplerResponse:
    """Weights that were saved to sample from."""

    path: str
    """``tinker://MODEL/sampler_weights/NAME``."""
    digest: str = ""
    """blake3 of their tensors."""
    chain: str = ""
    """Behind the save."""


@dataclass(frozen=True, kw_only=True)
class LoadWeightsResponse:
    """A state that a model went on from."""

    path: str
    """Of the state."""
    chain: str = ""
    """Behind the load."""


@dataclass(frozen=True, kw_only=True)
class TopkLogprobs:
    """The k most likely tokens of each of N places."""

    token_ids: np.ndarray
    """int32 [N, k], the likeliest first; 0 where there are fewer."""
    logprobs: np.ndarray
    """float32 [N, k], in nats; -99999 where there are fewer."""

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
    """One completion of N tokens."""

    stop_reason: Literal["length", "stop"]
    """``length``: ``max_tokens`` were drawn, or the context is full."""
    sequence_id: str
    """Names it for the service; the same when the call is repeated."""
    tokens_np: np.ndarray
    """int32 [N]."""
    logprobs_np: np.ndarray
    """float32 [N], in nats, under the distribution that they were drawn from."""
    topk_logprobs_np: TopkLogprobs | None = None
    """[N, k], of the distribution after temperature and before any cut; None: not asked for."""

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
    """Completions of a prompt of N tokens."""

    sequences: Sequence[DrawnSequence]
    """``num_samples`` of them."""
    prompt_logprobs_np: np.ndarray | None = None
    """float32 [N], in nats, NaN where there is none (the first); None: not asked for."""
    topk_prompt_logprobs_np: TopkLogprobs | None = None
    """[N, k]; None: not asked for."""
    target_prompt_logprobs: TensorData | None = None
    """float32 in the shape of the ids that were asked about, 0 where there was -1; None: none were."""

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
    """A base model as its service has it."""

    model_name: str
    """As ``create_lora_training_client`` takes it."""
    tokenizer_id: str
    """Folder of its tokenizer on the service's machine."""


@dataclass(frozen=True, kw_only=True)
class GetInfoResponse:
    """A model as the service describes it."""

    model_id: str
    """Of the training client's model."""
    model_data: ModelData
    """Its base."""
    is_lora: bool
    """An adapter is trained; False: all parameters."""
    lora_rank: int | None
    """Of the adapter, 1 at least; None where there is none."""
    model_name: str
    """Of its base, again."""


@dataclass(frozen=True, kw_only=True)
class SupportedModel:
    """A base model that is served."""

    model_name: str
    """By which clients ask for it."""
    max_context_length: int
    """In tokens, prompt and completion together."""
    trainable: bool
    """A model may begin from it."""
    sampleable: bool
    """It may be sampled as it is."""


@dataclass(frozen=True, kw_only=True)
class GetServerCapabilitiesResponse:
    """The base models."""

    supported_models: Sequence[SupportedModel]
    """Those that the caller's key may ask for."""


@dataclass(frozen=True, kw_only=True)
class ModelStanding:
    """Where a model stands."""

    model_id: str
    """Of which."""
    calls: int
    """How many are answered."""
    chain: str
    """Behind the last of them."""

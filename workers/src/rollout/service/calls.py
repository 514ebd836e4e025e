"""Calls on a model and their answers, as they are kept in the book: bytes and numbers, equal for equal calls.

A call's digest is of this form, so that the same call in another encoding is the same call.

Axes: N tokens of a datum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from blake3 import blake3

TensorDtype = Literal["float32", "int64"]
ALPHA = 32
"""Of every adapter: the update is scaled by 32 / rank, as clients of this protocol reckon with."""
CLIPS: Mapping[str, Mapping[str, float]] = {
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "gspo": {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
}
"""Where a call says nothing: bounds of the ratio itself. Source of the last: GSPO (arXiv 2507.18071) section 5.1."""


class AdapterAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter that a client asked for, with the seed that it was given."""

    rank: int
    seed: int
    targets: tuple[Literal["Attention", "Mlp"], ...]


class CallTensor(msgspec.Struct, frozen=True, array_like=True):
    """One input of a loss: raw little-endian numbers and their shape."""

    dtype: TensorDtype
    shape: tuple[int, ...]
    data: bytes


class CallDatum(msgspec.Struct, frozen=True):
    """One sequence. ``tokens`` are int32 [N], little-endian; ``inputs`` by name, sorted."""

    tokens: bytes
    inputs: dict[str, CallTensor]


class ForwardBackward(msgspec.Struct, frozen=True, tag="forward_backward"):
    """Compute the loss, and with ``backward`` add its gradient to what the model has gathered."""

    loss: str
    config: dict[str, float | str]
    backward: bool
    data: tuple[CallDatum, ...]


class OptimStep(msgspec.Struct, frozen=True, tag="optim_step", kw_only=True):
    """One step of AdamW on the gathered gradient; ``grad_clip_norm`` 0 does not clip. The defaults are the client's."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class SaveForSampler(msgspec.Struct, frozen=True, tag="save_weights_for_sampler", kw_only=True):
    """Keep the weights to sample from, under ``name`` or, without one, for a sampler of this call's own.

    ``ttl_seconds``: what is saved expires so long after the call was answered; unset: never.
    """

    name: str | None = None
    ttl_seconds: int | msgspec.UnsetType = msgspec.UNSET


class SaveState(msgspec.Struct, frozen=True, tag="save_state"):
    """Keep the whole state, for another model to begin from; ``ttl_seconds`` as of weights."""

    name: str
    ttl_seconds: int | msgspec.UnsetType = msgspec.UNSET


class LoadState(msgspec.Struct, frozen=True, tag="load_state", kw_only=True):
    """Become what a state is of, with its moments (``optimizer``) or with none; ``digest`` is the state's.

    Its name is not in here: it begins with the other model's id, and equal loops come to equal chains.
    """

    digest: str
    optimizer: bool


class RefusedCall(msgspec.Struct, frozen=True, tag="refused_call", omit_defaults=True):
    """A call that is refused as it comes: it takes its place in the order, since clients count it, and changes nothing.

    ``of``: the digest of the call that its key had no quota for; empty: the content was at fault.
    """

    why: str
    of: str = ""


ModelCall = ForwardBackward | OptimStep | SaveForSampler | SaveState | LoadState | RefusedCall


class LossAnswer(msgspec.Struct, frozen=True, tag="loss", kw_only=True):
    """Of each datum: float32 [N] logprobs of its targets, and its losses token by token."""

    logprobs: tuple[bytes, ...]
    losses: tuple[bytes, ...]
    metrics: dict[str, float]


class StepAnswer(msgspec.Struct, frozen=True, tag="step"):
    """What a step did."""

    metrics: dict[str, float]


class SavedAnswer(msgspec.Struct, frozen=True, tag="saved", kw_only=True):
    """What was saved: weights to sample from, or a state. ``digest`` is of the tensors; ``name`` as in the call."""

    digest: str
    name: str | None = None
    state: bool = False


class LoadedAnswer(msgspec.Struct, frozen=True, tag="loaded"):
    """The digest of the state that was loaded."""

    digest: str


class RefusedAnswer(msgspec.Struct, frozen=True, tag="refused"):
    """Why a call was not made; the model is as before."""

    error: str


ModelAnswer = LossAnswer | StepAnswer | SavedAnswer | LoadedAnswer | RefusedAnswer


class SampleCall(msgspec.Struct, frozen=True, kw_only=True):
    """Completions of one prompt. ``seeds``: one for each; ``stop_ids`` end a completion, so do texts in ``stop``.

    ``top_k`` (0: all) and ``top_p`` leave the most likely tokens to draw from.
    ``prompt_logprobs``: the prompt's tokens are scored, too, at temperature 1; of them the last ``last_n`` (0: all).
    ``top_prompt`` and ``top_sampled``: so many likely tokens beside each. ``targets``: int64 [prompt - 1, K], -1 for none.
    """

    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    stop: tuple[str, ...]
    prompt_logprobs: bool = False
    top_k: int = 0
    top_p: float = 1.0
    last_n: int = 0
    top_prompt: int = 0
    top_sampled: int = 0
    targets: CallTensor | None = None


class TopTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The ``k`` most likely tokens of each place: int32 ids and float32 logprobs [N, k], (0, -99999) where there are none."""

    k: int
    ids: bytes
    logprobs: bytes


class SampledSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One completion: int32 tokens, float32 logprobs under the distribution that they were drawn from."""

    tokens: bytes
    logprobs: bytes
    stopped: bool
    top: TopTokens | None = None


class SampleAnswer(msgspec.Struct, frozen=True, tag="sampled"):
    """Completions, one for each seed; float32 logprobs of the prompt's tokens (the first has none: NaN), empty unless asked for.

    ``targets``: float32 logprobs of what was asked for by id, in its shape, 0 for none.
    """

    sequences: tuple[SampledSequence, ...]
    prompt_logprobs: bytes = b""
    top_prompt: TopTokens | None = None
    targets: CallTensor | None = None


SampleOutcome = SampleAnswer | RefusedAnswer

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def encode_fact(value: msgspec.Struct) -> bytes:
    """The bytes that are kept and hashed: equal values, equal bytes."""
    return _ENCODER.encode(value)


def digest_fact(encoded: bytes) -> str:
    """What names a call or an answer in the chain."""
    return f"blake3:{blake3(encoded).hexdigest()}"

"""Bodies in JSON, as clients send them: every field that a call has is known here or refused by its name.

Where a field says what the service does anyway, or nothing that matters to it, it is read and forgotten; the comment says so.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from rollout.service.refusals import CallRefused

T = TypeVar("T", bound=msgspec.Struct)


class SessionAsk(msgspec.Struct, kw_only=True):
    """A new session. Tags, metadata and names of people's are kept as they are."""

    sdk_version: str
    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    project_id: str | None = None
    display_name: str | None = None


class HeartbeatAsk(msgspec.Struct, kw_only=True):
    """A session that is still there."""

    session_id: str


class LoraAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter, as clients ask for it."""

    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which optimizer a model has for its life."""

    type: str = "adamw"


class ModelAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new model; (session, ``model_seq_id``) is its place."""

    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: LoraAsk | None = None
    optimizer_config: OptimizerAsk = msgspec.field(default_factory=OptimizerAsk)
    user_metadata: dict[str, Any] | None = None
    type: Literal["create_model"] = "create_model"


class ModelInfoAsk(msgspec.Struct, kw_only=True):
    """A model that is asked about."""

    model_id: str


class SavedInfoAsk(msgspec.Struct, kw_only=True):
    """What was saved under a path, that is asked about."""

    tinker_path: str


class AdamAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """AdamW's numbers for one step."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class StepAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A step of the optimizer."""

    model_id: str
    seq_id: int
    adam_params: AdamAsk | None = None
    optimizer_params: dict[str, Any] | None = None
    type: Literal["optim_step"] = "optim_step"


class SamplerSaveAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Weights to sample from, under a name or for one new sampler."""

    model_id: str
    seq_id: int
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: str = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class StateSaveAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A state to keep under a name."""

    model_id: str
    seq_id: int
    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights"] = "save_weights"


class StateLoadAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new model that begins from a state; with ``model_id`` and ``seq_id`` into one that there is."""

    path: str
    optimizer: bool
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    optimizer_config: OptimizerAsk | None = None
    weights_access_token: str | None = None
    user_metadata: dict[str, Any] | None = None
    model_id: str | None = None
    seq_id: int | None = None
    type: Literal["load_weights"] = "load_weights"


class ExpiryAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When something saved expires, in seconds from now; None: never."""

    ttl_seconds: int | None


class PlacedAsk(msgspec.Struct, kw_only=True):
    """What every call on a model says, whatever else it is."""

    model_id: str
    seq_id: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class SamplerAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A sampler of a base model or of saved weights; (session, ``sampling_session_seq_id``) is its place."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class ChunkKind(msgspec.Struct, kw_only=True):
    """Of what kind a part of a prompt is; parts of other kinds than text are refused by that, whatever they hold."""

    type: str = "encoded_text"


class TextChunk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a prompt in tokens."""

    tokens: list[int] = []
    type: Literal["encoded_text"] = "encoded_text"


class PromptAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A prompt in parts."""

    chunks: list[msgspec.Raw]


class SamplingAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to sample. ``stop`` None: the base model's end tokens end a completion; an empty list: nothing does."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class SampleAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Completions of a prompt."""

    prompt: PromptAsk
    sampling_params: SamplingAsk
    num_samples: int = 1
    sampling_session_id: str | None = None
    seq_id: int | None = None
    base_model: str | None = None
    model_path: str | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


class FutureAsk(msgspec.Struct, kw_only=True):
    """An answer that is asked for; it always comes whole, so that ``allow_metadata_only`` says nothing here."""

    request_id: str
    allow_metadata_only: bool = False


def read_body(body: bytes, kind: type[T]) -> T:
    """A body as one of these. Raises CallRefused, which names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CallRefused(f"the body is no {kind.__name__.removesuffix('Ask')}: {error}") from error
    except RecursionError as error:
        raise CallRefused(
            f"the body is no {kind.__name__.removesuffix('Ask')}: it is nested too deeply; send it flat"
        ) from error

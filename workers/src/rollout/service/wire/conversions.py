"""From what clients send to the calls that are made, and what of it is not offered.

Everything here is decided from the body alone; whether a model or a sampler exists is asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from msgspec import UNSET, UnsetType

from rollout.learner.model.adapter import LoraTarget
from rollout.service.calls import OptimStep, SaveForSampler, SaveState
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.registry import SavedState, ServiceModel
from rollout.service.training.trained import AdapterAsk
from rollout.service.wire.requests import (
    LoraAsk,
    ModelAsk,
    SamplerSaveAsk,
    StateLoadAsk,
    StateSaveAsk,
    StepAsk,
)

RANK_MAX = 256
NAME_MAX = 128
SEED_MAX = 2**63 - 1
TTL_MIN, TTL_MAX = 3600, 10 * 365 * 86_400
"""Seconds; the client's bounds."""


def read_adapter(
    ask: ModelAsk, model_id: str, *, skip_unembed: bool, full_weights: bool = False
) -> AdapterAsk | None:
    """The adapter of a new model; one without a seed has it from the model's id. Raises CallRefused.

    ``skip_unembed`` leaves out one on the unembedding, which is refused otherwise. ``full_weights``: None, whatever adapter
    is asked for, since models over this base have all of their weights trained.
    """
    if ask.optimizer_config.type != "adamw":
        raise not_offered(f"optimizer_config.type {ask.optimizer_config.type!r}", "use adamw")
    if full_weights:
        return None
    lora = ask.lora_config
    if lora is None:
        raise CallRefused(
            f"lora_config: none, a model whose weights are all trained; models over {ask.base_model} are adapters: ask"
            " for one, or start the service with --full-weights and the base's name"
        )
    if not 1 <= lora.rank <= RANK_MAX:
        raise CallRefused(f"lora_config.rank: expected 1 to {RANK_MAX}, got {lora.rank}")
    if lora.seed is not None and not 0 <= lora.seed <= SEED_MAX:
        raise CallRefused(f"lora_config.seed: expected 0 to {SEED_MAX}, got {lora.seed}")
    seed = number_of(model_id) if lora.seed is None else lora.seed
    return AdapterAsk(rank=lora.rank, seed=seed, targets=_targets(lora, skip_unembed=skip_unembed))


def _targets(lora: LoraAsk, *, skip_unembed: bool) -> tuple[LoraTarget, ...]:
    if lora.train_unembed and not skip_unembed:
        raise not_offered(
            "lora_config.train_unembed: an adapter on the unembedding",
            "say train_unembed=False in create_lora_training_client, or start the service with --skip-unembed",
        )
    wanted: list[LoraTarget] = []
    if lora.train_attn:
        wanted.append("Attention")
    if lora.train_mlp:
        wanted.append("Mlp")
    if not wanted:
        raise CallRefused(
            "lora_config: expected train_attn or train_mlp, got neither; switch one on"
        )
    return tuple(wanted)


def read_step(ask: StepAsk) -> OptimStep:
    """A step of AdamW. Raises CallRefused."""
    if ask.optimizer_params is not None or ask.adam_params is None:
        raise not_offered("optimizer_params: an optimizer other than AdamW", "send adam_params")
    said = ask.adam_params
    return OptimStep(
        learning_rate=said.learning_rate,
        beta1=said.beta1,
        beta2=said.beta2,
        eps=said.eps,
        weight_decay=said.weight_decay,
        grad_clip_norm=said.grad_clip_norm,
    )


def read_save(ask: SamplerSaveAsk) -> SaveForSampler:
    """Weights to keep; a sampler of them is named after the call, whatever number the client counts. Raises CallRefused."""
    if ask.kind != "snapshot":
        raise not_offered(f"kind {ask.kind!r}: weights that change under a sampler", "use snapshot")
    if ask.path is not None:
        check_name("path", ask.path)
        return SaveForSampler(name=ask.path, ttl_seconds=_read_ttl(ask.ttl_seconds))
    if ask.sampling_session_seq_id is None:
        raise CallRefused("expected path or sampling_session_seq_id; give one of them")
    if ask.ttl_seconds is not None:
        raise not_offered("ttl_seconds: weights without a name that expire", "give them a name")
    return SaveForSampler()


def read_state_save(ask: StateSaveAsk) -> SaveState:
    """A state to keep. Raises CallRefused."""
    if ask.overwrite:
        raise not_offered("overwrite: another state under the same name", "choose another name")
    check_name("path", ask.path or "")
    return SaveState(ask.path or "", ttl_seconds=_read_ttl(ask.ttl_seconds))


def check_ttl(ttl_seconds: int) -> None:
    """Raise CallRefused for a time after which nothing can expire."""
    if not TTL_MIN <= ttl_seconds <= TTL_MAX:
        raise CallRefused(
            f"ttl_seconds: expected {TTL_MIN} (an hour) to {TTL_MAX} (ten years), got {ttl_seconds}"
        )


def _read_ttl(ttl_seconds: int | None) -> int | UnsetType:
    if ttl_seconds is None:
        return UNSET
    check_ttl(ttl_seconds)
    return ttl_seconds


def check_load(ask: StateLoadAsk, base: str) -> None:
    """Raise CallRefused for what a new model cannot have from a state over ``base``."""
    if ask.weights_access_token is not None:
        raise not_offered("weights_access_token", "load what your own key saved")
    if ask.base_model not in (None, base):
        raise CallRefused(
            f"base_model: the state is of {base}, not of {ask.base_model!r}; leave it out"
        )
    if ask.optimizer_config is not None and ask.optimizer_config.type != "adamw":
        raise not_offered(f"optimizer_config.type {ask.optimizer_config.type!r}", "use adamw")


def check_fits(saved: SavedState, model: ServiceModel) -> None:
    """Raise CallRefused for a state of another base or of another kind than the model's; seeds of adapters may differ."""
    if saved.base != model.base:
        raise CallRefused(f"path: the state is of {saved.base}, the model of {model.base}")
    theirs, mine = (_kind(one.adapter) for one in (saved, model))
    if theirs != mine:
        raise CallRefused(
            f"path: the state is of {theirs}, the model has {mine}; create_training_client_from_state makes a model that fits"
        )


def _kind(adapter: AdapterAsk | None) -> str:
    if adapter is None:
        return "full weights"
    return f"an adapter of rank {adapter.rank} on {', '.join(adapter.targets)}"


def check_name(field: str, name: str) -> None:
    """Raise CallRefused for what is no name of saved weights."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not 0 < len(name) <= NAME_MAX or not plain.isalnum() or not name.isascii():
        raise CallRefused(
            f"{field}: expected up to {NAME_MAX} letters, digits, dots, dashes and underscores, got {name[:200]!r}"
        )


def sampler_id(session_id: str, seq: int) -> str:
    """The id of a session's sampler."""
    if not 0 <= seq <= SEED_MAX:
        raise CallRefused(f"sampling_session_seq_id: expected 0 or more, got {seq}")
    return f"{session_id}:sample:{seq}"


def model_id_of(session_id: str, seq: int) -> str:
    """The id of a session's model; clients reckon with this form."""
    if not 0 <= seq <= SEED_MAX:
        raise CallRefused(f"model_seq_id: expected 0 or more, got {seq}")
    return f"{session_id}:train:{seq}"


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """int32, little-endian."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def pack_reals(values: Sequence[float]) -> bytes:
    """float32, little-endian."""
    return np.asarray(values, dtype="<f4").tobytes()


def number_of(name: str) -> int:
    """A seed that belongs to a name."""
    return int.from_bytes(blake3(name.encode()).digest(length=8), "little") >> 1

"""From what clients send to the calls that are made, and what of it is not offered.

Everything here is decided from the body alone; whether a model or a sampler exists is asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from rollout.learner.model.adapter import LoraTarget
from rollout.seeds import derive_seed
from rollout.service.calls import OptimStep, SampleCall, SaveForSampler, SaveState
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.registry import SavedState, ServiceModel
from rollout.service.training.bases import TrainingBase
from rollout.service.training.trained import AdapterAsk
from rollout.service.wire.requests import (
    LoraAsk,
    ModelAsk,
    SampleAsk,
    SamplerSaveAsk,
    SamplingAsk,
    StateLoadAsk,
    StateSaveAsk,
    StepAsk,
)

RANK_MAX = 256
SAMPLES_MAX = 1024
NAME_MAX = 128
SEED_MAX = 2**63 - 1


def read_adapter(ask: ModelAsk, model_id: str, *, skip_unembed: bool) -> AdapterAsk:
    """The adapter of a new model; one without a seed has it from the model's id. Raises CallRefused.

    ``skip_unembed`` leaves out one on the unembedding, which is refused otherwise.
    """
    if ask.optimizer_config.type != "adamw":
        raise not_offered(f"optimizer_config.type {ask.optimizer_config.type!r}", "use adamw")
    lora = ask.lora_config
    if lora is None:
        raise not_offered(
            "lora_config: none, a model whose weights are all trained,", "ask for an adapter"
        )
    if not 1 <= lora.rank <= RANK_MAX:
        raise CallRefused(f"lora_config.rank: expected 1 to {RANK_MAX}, got {lora.rank}")
    if lora.seed is not None and not 0 <= lora.seed <= SEED_MAX:
        raise CallRefused(f"lora_config.seed: expected 0 to {SEED_MAX}, got {lora.seed}")
    seed = _number(model_id) if lora.seed is None else lora.seed
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
    if ask.ttl_seconds is not None:
        raise not_offered(
            "ttl_seconds: weights that expire", "leave it out, and remove the folder yourself"
        )
    if ask.path is not None:
        check_name("path", ask.path)
        return SaveForSampler(name=ask.path)
    if ask.sampling_session_seq_id is None:
        raise CallRefused("expected path or sampling_session_seq_id; give one of them")
    return SaveForSampler()


def read_state_save(ask: StateSaveAsk) -> SaveState:
    """A state to keep. Raises CallRefused."""
    if ask.ttl_seconds is not None:
        raise not_offered("ttl_seconds: a state that expires", "leave it out")
    if ask.overwrite:
        raise not_offered("overwrite: another state under the same name", "choose another name")
    check_name("path", ask.path or "")
    return SaveState(ask.path or "")


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
    """Raise CallRefused for a state of another base or of another adapter than the model's; seeds may differ."""
    if saved.base != model.base:
        raise CallRefused(f"path: the state is of {saved.base}, the model of {model.base}")
    theirs, mine = saved.adapter, model.adapter
    if (theirs.rank, theirs.targets) != (mine.rank, mine.targets):
        raise CallRefused(
            f"path: the state is of an adapter of rank {theirs.rank} on {', '.join(theirs.targets)}, the model's has"
            f" rank {mine.rank} on {', '.join(mine.targets)}; create_training_client_from_state makes a model that fits"
        )


def check_name(field: str, name: str) -> None:
    """Raise CallRefused for what is no name of saved weights."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not 0 < len(name) <= NAME_MAX or not plain.isalnum() or not name.isascii():
        raise CallRefused(
            f"{field}: expected up to {NAME_MAX} letters, digits, dots, dashes and underscores, got {name[:200]!r}"
        )


def read_sample(ask: SampleAsk, base: TrainingBase, request_id: str) -> SampleCall:
    """What to sample; seeds that are not said come from the request's id. Raises CallRefused."""
    _refuse_unoffered(ask)
    prompt = [token for chunk in ask.prompt.chunks for token in chunk.tokens]
    bad = next((token for token in prompt if not 0 <= token < base.vocab), None)
    if not prompt or bad is not None:
        raise CallRefused(
            f"prompt: expected tokens of the vocabulary of {base.vocab}, got {bad if prompt else 'none'}"
        )
    params = ask.sampling_params
    left = base.context - len(prompt)
    max_tokens = left if params.max_tokens is None else params.max_tokens
    if not 1 <= max_tokens <= left:
        raise CallRefused(
            f"sampling_params.max_tokens: expected 1 to {left} (the base model's {base.context} without the"
            f" prompt's {len(prompt)}), got {max_tokens}"
        )
    stop_ids, stop = _stops(params, base.end_ids)
    seed = _number(request_id) if params.seed is None else params.seed
    return SampleCall(
        prompt=tuple(prompt),
        seeds=tuple(derive_seed(seed, "service", 0, i) for i in range(ask.num_samples)),
        max_tokens=max_tokens,
        temperature=params.temperature,
        stop_ids=stop_ids,
        stop=stop,
        prompt_logprobs=bool(ask.prompt_logprobs),
    )


def _refuse_unoffered(ask: SampleAsk) -> None:
    asked = {
        "topk_prompt_logprobs": ask.topk_prompt_logprobs != 0,
        "topk_sample_logprobs": ask.topk_sample_logprobs != 0,
        "target_prompt_logprobs": ask.target_prompt_logprobs is not None,
        "prompt_alt_tokens_k": ask.prompt_alt_tokens_k != 0,
        "prompt_logprobs_last_n": ask.prompt_logprobs_last_n is not None,
        "record_stability_info": bool(ask.record_stability_info),
        "sampling_params.top_k": ask.sampling_params.top_k != -1,
        "sampling_params.top_p": ask.sampling_params.top_p != 1.0,
    }
    found = next((name for name, is_asked in asked.items() if is_asked), None)
    if found is not None:
        raise not_offered(
            found,
            "leave it out: tokens are drawn from the whole distribution, with logprobs; prompt_logprobs scores the prompt",
        )
    other = next((c.type for c in ask.prompt.chunks if c.type != "encoded_text"), None)
    if other is not None:
        raise not_offered(f"prompt: a part of type {other!r}", "send tokens")
    if not 1 <= ask.num_samples <= SAMPLES_MAX:
        raise CallRefused(f"num_samples: expected 1 to {SAMPLES_MAX}, got {ask.num_samples}")
    params = ask.sampling_params
    if not 0 <= params.temperature < float("inf"):
        raise CallRefused(
            f"sampling_params.temperature: expected 0 or more, got {params.temperature}"
        )
    if params.seed is not None and not 0 <= params.seed <= SEED_MAX:
        raise CallRefused(f"sampling_params.seed: expected 0 to {SEED_MAX}, got {params.seed}")


def _stops(params: SamplingAsk, end_ids: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """End tokens and stop texts; texts are beside the base's end tokens, tokens in their stead."""
    stop = params.stop
    if stop is None:
        return tuple(end_ids), ()
    said = [stop] if isinstance(stop, str) else stop
    texts = tuple(one for one in said if isinstance(one, str))
    tokens = tuple(one for one in said if isinstance(one, int))
    if texts and tokens:
        raise CallRefused("sampling_params.stop: expected texts or tokens, got both; give one kind")
    if not all(texts):
        raise CallRefused("sampling_params.stop: an empty text would end everything; leave it out")
    return (tuple(end_ids), texts) if texts else (tokens, ())


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


def _number(name: str) -> int:
    return int.from_bytes(blake3(name.encode()).digest(length=8), "little") >> 1

"""Memory per device, estimated before anything starts: weights, optimizer, activations, KV cache, staging, mirror.

Simple sums with their terms kept, so that ``plan`` can print where the bytes go; those of a pass are counted in
``activations``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollout_api.checks.accelerators.activations import Activations, pass_activations
from rollout_api.checks.facts import Facts, ModelFacts
from rollout_api.checks.training.batch import samples_per_step
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.optimizer import Optimizer
from rollout_api.v1alpha1.training.train import Train

GIB = 1024**3
HEADROOM = 0.92
"""Share of a device that a run may plan with; the rest is fragmentation and libraries."""
PIECE_NUMBERS = 1 << 25
"""Numbers whose optimizer states lie on a device at a time, where these are offloaded: 256 MiB of adamw's."""
KV_SEQUENCES = 16
"""Of an engine that are planned with."""
SERVICE_ENGINES_MAX = 2
"""Engines that a training service keeps loaded to sample from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per device of one role, by part."""

    role: str
    parts: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Sum of the parts, in bytes."""
        return sum(size for _, size in self.parts)


def estimate_learner(
    spec: RolloutRunSpec, model: ModelFacts, sequence_tokens: int | None = None
) -> Memory:
    """Bytes per rank. FSDP shards weights, gradients and optimizer; DDP repeats them.

    ``sequence_tokens`` is the longest sequence, None where it is not known: then passes are taken to be full.
    """
    assert spec.train is not None
    width = value_bytes(spec)
    shards = spec.learner.num_processes if spec.learner.strategy.fsdp else 1
    trained = _trained(spec, model)
    moments = _moments(spec.train.optimizer)
    whole = _tokens_of_update(spec, sequence_tokens)
    bound = spec.train.micro_batch_tokens
    found = _pass(spec, model, bound if whole is None else min(bound, whole))
    master = trained * 4 if width == 2 else 0
    reference = model.num_parameters * width if _holds_reference(spec) else 0
    alone = width == 4 and whole is not None and whole <= bound
    held = found.most(gradients=trained * 4 if alone else 0)
    return Memory(
        role="learner",
        parts=(
            ("weights", _held(spec, model, width) // shards),
            ("master weights", master // shards),
            ("gradients", trained * 4 // shards),
            ("optimizer", _states_there(spec, trained * moments // shards, moments)),
            ("reference", reference // shards),
            ("critic", _critic(spec, model, width) // shards),
            ("teacher", _teacher(spec, model, width)),
            ("activations", min(found.kept, held)),
            ("logits", held - min(found.kept, held)),
            ("staging", trained * width // shards),
        ),
    )


def offloaded_bytes(spec: RolloutRunSpec, model: ModelFacts) -> int:
    """Bytes of a rank's optimizer states that lie in host memory; 0 where they lie on the device."""
    if spec.train is None or not spec.learner.optimizer_offload:
        return 0
    shards = spec.learner.num_processes if spec.learner.strategy.fsdp else 1
    own = _trained(spec, model) * _moments(spec.train.optimizer)
    ppo = spec.train.algorithm.ppo
    critic = model.num_parameters * _moments(ppo.critic.optimizer) if ppo else 0
    return (own + critic) // shards


def keeps_states(train: Train) -> bool:
    """Whether the optimizer of the policy, or of a critic, holds anything from step to step."""
    critic = train.algorithm.ppo.critic.optimizer if train.algorithm.ppo else None
    return bool(_moments(train.optimizer) or (critic and _moments(critic)))


def _states_there(spec: RolloutRunSpec, states: int, moments: int) -> int:
    """Bytes of optimizer states that a device holds: all, or the largest piece of those that lie on the host."""
    if not spec.learner.optimizer_offload:
        return states
    return min(states, PIECE_NUMBERS * moments)


def _pass(spec: RolloutRunSpec, model: ModelFacts, tokens: int) -> Activations:
    """Of a rank: of ranks that share sequences the layers' of its slice, and the head's of all of it."""
    assert spec.train is not None
    recomputes, width = spec.train.activation_checkpointing, value_bytes(spec)
    whole = pass_activations(model, tokens, width, recomputes=recomputes)
    ranks = spec.learner.sequence_parallel
    if ranks == 1:
        return whole
    part = pass_activations(model, -(-tokens // ranks), width, recomputes=recomputes)
    gathered = tokens * model.hidden_size * width
    return replace(part, head=whole.head, kept=part.kept + gathered)


def estimate_actor(spec: RolloutRunSpec, model: ModelFacts, sequence_tokens: int) -> Memory:
    """Bytes per device of one engine: weights, a KV cache for some sequences, the weight mirror."""
    width = value_bytes(spec)
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    devices = vllm.tensor_parallel if vllm else 1
    token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * width
    weights = model.num_parameters * width
    return Memory(
        role="actor",
        parts=(
            ("weights", weights // devices),
            ("KV cache", token * sequence_tokens * KV_SEQUENCES // devices),
        ),
    )


def estimate_service(model: ModelFacts, *, full_weights: bool) -> Memory:
    """Host bytes of a training service: the base, the engines that samplers draw from, and a first model of full weights.

    Adapters are small beside them.
    """
    weights = model.num_parameters * 4
    first = (("a model with its moments and gradient", 4 * weights),) if full_weights else ()
    return Memory(
        role="service (host)",
        parts=(
            ("weights", weights),
            ("engines of samplers, at most", SERVICE_ENGINES_MAX * weights),
            *first,
        ),
    )


def mirror_bytes(spec: RolloutRunSpec, model: ModelFacts) -> int:
    """Host memory of an actor that holds the served weights, for patching."""
    return model.num_parameters * value_bytes(spec)


def value_bytes(spec: RolloutRunSpec) -> int:
    """Bytes of one served value: 2 in BFloat16 (the default on accelerators), 4 in Float32."""
    dtype = spec.model.dtype or ("BFloat16" if spec.learner.accelerator else "Float32")
    return 2 if dtype == "BFloat16" else 4


def estimates(spec: RolloutRunSpec, facts: Facts) -> tuple[Memory, ...]:
    """Learner and actor, or the service, where the model is known."""
    if spec.serve is not None and facts.model is not None:
        return (estimate_service(facts.model, full_weights=spec.serve.full_weights),)
    if spec.train is None or facts.model is None:
        return ()
    online = spec.train.algorithm.is_online
    sequence = longest_tokens(spec, facts)
    actor = (estimate_actor(spec, facts.model, sequence),) if online else ()
    return (estimate_learner(spec, facts.model, sequence), *actor)


def longest_tokens(spec: RolloutRunSpec, facts: Facts) -> int:
    """Of the sequences that a run trains on, prompt and completion."""
    assert spec.train is not None
    if not spec.train.algorithm.is_online:
        return int(spec.train.algorithm.value.max_length)
    prompt = spec.train.max_prompt_tokens or (facts.data.prompt_tokens_max if facts.data else None)
    return (prompt or 512) + spec.train.sampling.new_tokens_max


def _moments(optimizer: Optimizer) -> int:
    """Bytes of the optimizer's state for each number that it moves."""
    if optimizer.adamw:
        return 8
    return 4 if optimizer.sgd and optimizer.sgd.momentum else 0


def _critic(spec: RolloutRunSpec, model: ModelFacts, width: int) -> int:
    """A value model of the policy's size: weights, masters, gradients and its own optimizer.

    Its activations replace the policy's, which are gone when its turn comes.
    """
    ppo = spec.train.algorithm.ppo if spec.train else None
    if ppo is None:
        return 0
    moments = 0 if spec.learner.optimizer_offload else _moments(ppo.critic.optimizer)
    return model.num_parameters * (width + (4 if width == 2 else 0) + 4 + moments)


def _teacher(spec: RolloutRunSpec, model: ModelFacts, width: int) -> int:
    """A frozen teacher's weights, whole on every rank, as if it had the policy's size: the least it has."""
    distils = spec.train is not None and "teacher" in spec.train.algorithm.traits.models
    return model.num_parameters * width if distils else 0


def _tokens_of_update(spec: RolloutRunSpec, sequence_tokens: int | None) -> int | None:
    """Most tokens that a rank's share of an update has; None where the length of a sequence is not known."""
    if sequence_tokens is None or spec.train is None:
        return None
    algorithm = spec.train.algorithm
    parts = algorithm.value.mini_batches if algorithm.is_online else 1
    samples = samples_per_step(spec) * (2 if algorithm.traits.row == "pair" else 1)
    return -(-samples // (parts * max(1, spec.learner.num_shares))) * sequence_tokens


def _holds_reference(spec: RolloutRunSpec) -> bool:
    """Whether a second model lies there: an adapter's reference is the policy with the adapter off."""
    assert spec.train is not None
    own = spec.model.lora is not None and spec.train.reference is None
    return spec.train.algorithm.uses_reference and not own


def _held(spec: RolloutRunSpec, model: ModelFacts, width: int) -> int:
    """The policy's weights: all but the embeddings in 4.5 bits where they are quantized."""
    lora = spec.model.lora
    if lora is None or lora.quantization is None:
        return model.num_parameters * width
    around = min(model.num_parameters, model.vocab_size * model.hidden_size)
    return around * width + (model.num_parameters - around) * 9 // 16


def _trained(spec: RolloutRunSpec, model: ModelFacts) -> int:
    lora = spec.model.lora
    if lora is None:
        return model.num_parameters
    per_layer = 2 * lora.rank * model.hidden_size * 7
    return per_layer * model.num_layers

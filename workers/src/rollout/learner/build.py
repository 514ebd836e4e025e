"""From a worker configuration to the parts of a learner: model, optimizer, reference, renderer, store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from rollout.engines.device_turns import shared_turn
from rollout.errors import SpecError
from rollout.learner.checkpoint import AnchorPlace
from rollout.learner.config.learner import LearnerSettings
from rollout.learner.context import LearnerContext
from rollout.learner.forward.check import ForwardCheck, check_forward
from rollout.learner.model.adapter import AdapterOff, add_adapter, quantise_base
from rollout.learner.model.critic import Critic, CriticPlan, build_critic
from rollout.learner.model.numerics import runtime_identity
from rollout.learner.model.optim import build_optimizer
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import DTYPES, Policy, freeze, load_model, recompute_activations
from rollout.learner.objectives.preference.reference_cache import ReferenceCache, store_name
from rollout.learner.objectives.preference.reference_store import open_reference_store
from rollout.learner.objectives.registry import objective_of
from rollout.learner.session import Session
from rollout.learner.train_step import Trainer
from rollout.models.files import digest_model, scratch_dir
from rollout.models.forwards import LENGTHS_MAX, frequencies_hold
from rollout.models.roles import CRITIC, REFERENCE, TEACHER
from rollout.models.shapes import read_shape
from rollout.models.teachers import check_teacher
from rollout.objects.opening import open_store
from rollout.rendering import build_renderer
from rollout.seams import Renderer
from rollout.weights.publisher import Publisher
from rollout_api.worker import ResolvedRun, WorkerConfig


def build_parts(
    config: WorkerConfig, settings: LearnerSettings, parallel: Parallel, session: Session
) -> LearnerContext:
    """Everything a learner needs. Raises SpecError for an unknown model."""
    store = open_store(config, "learner")
    model_path = Path(config.resolved.model_path)
    critic_path = _further_path(config, CRITIC, "spec.train.algorithm.ppo.critic.model")
    trainer = build_trainer(model_path, settings, parallel, critic_path)
    reference = _reference(config, trainer)
    return LearnerContext(
        trainer=trainer,
        check=_check(trainer),
        session=session,
        place=AnchorPlace(
            store=store,
            snapshots_dir=Path(config.layout.run_dir) / "snapshots",
        ),
        reference=reference,
        reference_cache=_reference_cache(config, trainer, reference),
        teacher=_teacher(config, settings, parallel),
        renderer=_renderer(config, settings, model_path),
        identity=runtime_identity(world_size=parallel.world_size, device=parallel.device),
        stores_each_step=config.spec.needs_actors,
        publisher=Publisher(store),
        turn=shared_turn(config, alone=True),
    )


def _check(trainer: Trainer) -> ForwardCheck | None:
    """Compare the policy's packed rows with its plain forward; a reward model has no logits to compare."""
    policy, settings = trainer.policy, trainer.settings
    if objective_of(settings).traits.scores:
        return None
    if policy.parallel.sharded:
        _refuse_lengths(policy.model.config)  # pyrefly: ignore - transformers' models have one
    return check_forward(policy.model, DTYPES[settings.dtype], policy.parallel)


def _refuse_lengths(config: Any) -> None:
    """Ranks of a sharded model make every pass together; a row that is split for its length is several."""
    if frequencies_hold(vars(config)) < LENGTHS_MAX:
        raise SpecError(
            f"spec.learner.strategy.fsdp: the rotary frequencies of {config.model_type} follow a sequence's "
            "length, which shards do not support; train it in one process, or replicated"
        )


def build_trainer(
    model_path: Path,
    settings: LearnerSettings,
    parallel: Parallel,
    critic_path: Path | None = None,
) -> Trainer:
    """The policy from a model folder, and its optimizer; for PPO a critic and the KL coefficient.

    The critic starts from ``critic_path``, None for the policy's own folder.
    """
    model = objective_of(settings).load(model_path, settings.algorithm)
    if settings.lora is not None:
        quantise_base(model, settings.lora, DTYPES[settings.dtype], parallel.device)
        add_adapter(model, settings.lora, settings.seed)
    if settings.activation_checkpointing:
        recompute_activations(model)
    served = settings.lora is not None and settings.lora.served
    policy = Policy(model, DTYPES[settings.dtype], parallel, serves_adapter=served)
    optimizer = build_optimizer(
        policy.masters.values(), settings.optimizer, offloads=settings.optimizer_offload
    )
    return Trainer(
        policy=policy,
        optimizer=optimizer,
        settings=settings,
        critic=_build_critic(critic_path or model_path, settings, parallel),
        control=objective_of(settings).kl_control(settings.algorithm),
    )


def _build_critic(model_path: Path, settings: LearnerSettings, parallel: Parallel) -> Critic | None:
    chosen = objective_of(settings).critic(settings.algorithm)
    if chosen is None:
        return None
    plan = CriticPlan(
        path=model_path,
        dtype=settings.dtype,
        seed=settings.seed,
        checkpointing=settings.activation_checkpointing,
        offloads=settings.optimizer_offload,
    )
    return build_critic(plan, chosen, parallel)


def _further_path(config: WorkerConfig, role: str, field: str) -> Path | None:
    """The folder of a further model, None when there is none. Raises SpecError for other tokens."""
    given = config.resolved.models.get(role)
    if given is None:
        return None
    policy = read_shape(Path(config.resolved.model_path)).vocab
    other = read_shape(Path(given)).vocab
    if policy != other:
        raise SpecError(
            f"{field}: its vocabulary has {other} tokens, the model's has {policy}: different tokens"
            " cannot be compared; use a model of the same family"
        )
    return Path(given)


def _reference(config: WorkerConfig, trainer: Trainer) -> nn.Module | None:
    """As ``build_reference``; where an adapter is trained, the policy itself with the adapter off."""
    settings, parallel = trainer.settings, trainer.policy.parallel
    path = _further_path(config, REFERENCE, "spec.train.reference")
    if settings.lora is None or path is not None:
        return build_reference(path or Path(config.resolved.model_path), settings, parallel)
    needed = objective_of(settings).needs_reference(settings.algorithm)
    return AdapterOff(trainer.policy.model) if needed else None


def _reference_cache(
    config: WorkerConfig, trainer: Trainer, reference: nn.Module | None
) -> ReferenceCache | None:
    """What stands before the reference of an offline run that asked for it."""
    train, settings, parallel = config.spec.train, trainer.settings, trainer.policy.parallel
    if train is None or not train.cache_reference or reference is None:
        return None
    own = isinstance(reference, AdapterOff)
    facts = {
        **runtime_identity(world_size=1, device=parallel.device),
        "model": _reference_digest(config.resolved),
        "dtype": settings.dtype,
        "quantization": str(settings.lora.quantization if own and settings.lora else None),
        "exact": str(settings.exact),
    }
    return ReferenceCache(
        reference,
        open_reference_store(scratch_dir() / "reference", store_name(facts)),
        parallel,
        alone=settings.exact,
        lockstep=own and parallel.sharded,
    )


def _reference_digest(resolved: ResolvedRun) -> str:
    if REFERENCE not in resolved.models:
        return resolved.model_digest
    return resolved.model_digests.get(REFERENCE) or digest_model(Path(resolved.models[REFERENCE]))


def build_reference(
    model_path: Path, settings: LearnerSettings, parallel: Parallel
) -> nn.Module | None:
    """The frozen model in a folder; None, and nothing loaded, where the algorithm needs none."""
    if not objective_of(settings).needs_reference(settings.algorithm):
        return None
    return load_frozen(model_path, settings, parallel)


def _teacher(
    config: WorkerConfig, settings: LearnerSettings, parallel: Parallel
) -> nn.Module | None:
    """The frozen teacher of distillation. Raises SpecError for one of other tokens."""
    if TEACHER not in objective_of(settings).traits.models:
        return None
    folder = Path(config.resolved.models[TEACHER])
    check_teacher(Path(config.resolved.model_path), folder)
    return load_frozen(folder, settings, parallel)


def load_frozen(folder: Path, settings: LearnerSettings, parallel: Parallel) -> nn.Module:
    """A model that only scores, in the policy's dtype, whole on every rank."""
    return freeze(load_model(folder), DTYPES[settings.dtype]).to(parallel.device)


def _renderer(config: WorkerConfig, settings: LearnerSettings, model_path: Path) -> Renderer | None:
    if objective_of(settings).traits.is_online:
        return None
    return build_renderer(model_path, config.spec.model.chat_template)

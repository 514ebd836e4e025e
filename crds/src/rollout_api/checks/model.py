"""The model: where it comes from, LoRA, context length, presets."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from rollout_api.checks.catalog import MODEL_SCHEMES, TINY_MODELS, suggest
from rollout_api.checks.facts import Facts
from rollout_api.presets import PRESETS, preset_names
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRunSpec


def preset_exists(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A preset that is not there fills nothing."""
    for name in preset_names(spec.preset) if spec.preset else ():
        if name not in PRESETS:
            yield Problem(
                field="spec.preset",
                reason="UnknownPreset",
                message=f"there is no preset {name!r}",
                fix=suggest(name, PRESETS),
            )


def uri_is_known(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A model location with an unknown scheme, an incomplete hub name, an unknown tiny model."""
    uri = spec.model.uri
    if uri is None:
        return
    parts = urlsplit(uri)
    if parts.scheme and parts.scheme not in MODEL_SCHEMES:
        yield _uri(
            f"the scheme {parts.scheme!r} is not known", suggest(parts.scheme, MODEL_SCHEMES)
        )
    elif parts.scheme == "rollout" and parts.netloc not in TINY_MODELS:
        yield _uri(f"there is no local model {parts.netloc!r}", suggest(parts.netloc, TINY_MODELS))
    elif parts.scheme == "hf" and not (parts.netloc and parts.path.strip("/")):
        yield _uri("a hub model is owner/name", "write hf://Qwen/Qwen2.5-0.5B-Instruct")


def revision_is_used(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Only hub models have revisions."""
    uri = spec.model.uri or ""
    if spec.model.revision and not uri.startswith("hf://"):
        yield Problem(
            field="spec.model.revision",
            reason="NotUsedByModel",
            message=f"{uri or 'fromRun'} has no revisions",
            fix="remove it; a digest in the plan holds the content",
        )


def lora_keeps_the_policy(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Dropout makes the learner's policy another one than the actors'."""
    train, lora = spec.train, spec.model.lora
    if train and lora and train.algorithm.is_online and lora.dropout > 0:
        yield Problem(
            field="spec.model.lora.dropout",
            reason="LoraDropoutInRl",
            message=f"dropout {lora.dropout} changes the policy at every forward, so that ratios are noise",
            fix="use 0; regularise with klCoefficient",
        )


def lora_has_targets(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """An adapter on nothing trains nothing."""
    if spec.model.lora and not spec.model.lora.targets:
        yield Problem(
            field="spec.model.lora.targets",
            reason="NothingToTrain",
            message="no projection gets an adapter",
            fix="write targets: [Attention, Mlp]",
        )


def lora_rank_fits(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A rank as large as the layer is not low."""
    lora, model = spec.model.lora, facts.model
    if lora and model and lora.rank >= model.hidden_size:
        yield Problem(
            field="spec.model.lora.rank",
            reason="LoraRankTooLarge",
            message=f"rank {lora.rank} is not below the hidden size {model.hidden_size}",
            fix="use 8 to 64, or remove lora to train all weights",
        )


def quantized_base_is_whole(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Weights in 4 bits are not sharded."""
    lora, learner = spec.model.lora, spec.learner
    if spec.train is None or lora is None or lora.quantization is None:
        return
    if learner.strategy.fsdp is not None and learner.num_processes > 1:
        yield Problem(
            field="spec.model.lora.quantization",
            reason="QuantizedBaseInShards",
            message="weights in 4 bits are not sharded",
            fix="use learner.strategy: {ddp: {}}, or remove quantization and keep fsdp",
        )


def ranks_share_sequences(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Ranks that share sequences divide the ranks, and the heads of the model."""
    learner, field = spec.learner, "spec.learner.sequenceParallel"
    ranks = learner.sequence_parallel
    if spec.train is None or ranks == 1:
        return
    if learner.num_processes % ranks:
        yield Problem(
            field=field,
            reason="SequencesNotShared",
            message=f"{learner.num_processes} ranks are no groups of {ranks}",
            fix=f"use a divisor of {learner.num_processes} (nodes x processesPerNode), or change these",
        )
    model = facts.model
    if model is None:
        return
    heads = (model.num_heads or model.num_kv_heads, model.num_kv_heads)
    if any(one % ranks for one in heads):
        yield Problem(
            field=field,
            reason="SequencesNotShared",
            message=f"{ranks} ranks share out heads, and the model has {heads[0]} of queries and {heads[1]} of keys",
            fix="use a divisor of both, or 1",
        )


def sequences_fit_the_context(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Prompt plus completion must fit; known as soon as the model's config is."""
    if facts.model is None or spec.train is None:
        return
    context, train = facts.model.context_length, spec.train
    if not train.algorithm.is_online:
        length = int(train.algorithm.value.max_length)
        if length > context:
            name = train.algorithm.chosen
            yield _context(f"spec.train.algorithm.{name}.maxLength", length, context)
        return
    prompt = train.max_prompt_tokens or (facts.data.prompt_tokens_max if facts.data else None) or 1
    total = prompt + (train.sampling.max_new_tokens or 1)
    if total > context:
        yield _context("spec.train.sampling.maxNewTokens", total, context)


def _uri(message: str, fix: str) -> Problem:
    return Problem(field="spec.model.uri", reason="UnknownModel", message=message, fix=fix)


def _context(field: str, needed: int, context: int) -> Problem:
    return Problem(
        field=field,
        reason="ContextTooShort",
        message=f"a sequence may need {needed} tokens, the model's context is {context}",
        fix="lower maxNewTokens, maxPromptTokens or maxLength, or use a model with a longer context",
    )


RULES = (
    preset_exists,
    uri_is_known,
    revision_is_used,
    lora_keeps_the_policy,
    lora_has_targets,
    lora_rank_fits,
    quantized_base_is_whole,
    ranks_share_sequences,
    sequences_fit_the_context,
)

"""Presets: the settings a manifest leaves out, from versioned tables. Pure; knows no model, no data.

Order: what the manifest says, then the preset it names, then ``defaults@v1``. The plain values of
``defaults@v1`` stand beside the fields they fill (``filled`` in the models); those that depend on
other fields are derived here. A recorded run carries the resolved spec, so a later version of the
defaults never changes it. A released preset is never edited: a change is a new version.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from rollout_api.algorithm_presets import ALGORITHM_PRESETS
from rollout_api.base import ApiModel, OneOf
from rollout_api.v1alpha1.pods.roles import CAPABILITIES, EngineName
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.algorithms import TRAITS

DEFAULTS = "defaults@v1"
MAX_NEW_TOKENS = 512
CRITIC_LEARNING_RATE, TINY_CRITIC_LEARNING_RATE = "1e-05", "0.001"
"""The second is for the models that rollout builds itself."""
OVERLONG_PARTS = 5
"""DAPO's penalised zone is 4096 of 20480 tokens."""
ENVIRONMENT_MAX_NEW_TOKENS = {"arithmetic": 8, "treasure-hunt": 64}

Document = dict[str, Any]


def _model(micro_batch_tokens: int, *, sharded: bool) -> Document:
    settings: Document = {
        "model": {"dtype": "BFloat16"},
        "train": {"microBatchTokens": micro_batch_tokens, "activationCheckpointing": sharded},
    }
    return settings | ({"learner": {"strategy": {"fsdp": {}}}} if sharded else {})


PRESETS: Mapping[str, Document] = {
    DEFAULTS: {},
    "qwen2.5-0.5b@v1": _model(16_384, sharded=False),
    "qwen2.5-1.5b@v1": _model(16_384, sharded=False),
    "qwen2.5-3b@v1": _model(16_384, sharded=True),
    "qwen2.5-7b@v1": _model(8_192, sharded=True),
    "qwen2.5-14b@v1": _model(8_192, sharded=True),
    "qwen2.5-32b@v1": _model(4_096, sharded=True),
    "qwen3-0.6b@v1": _model(16_384, sharded=False),
    "qwen3-1.7b@v1": _model(16_384, sharded=False),
    "qwen3-4b@v1": _model(16_384, sharded=True),
    "qwen3-8b@v1": _model(8_192, sharded=True),
    "qwen3-14b@v1": _model(8_192, sharded=True),
    "llama3.2-1b@v1": _model(16_384, sharded=False),
    "llama3.2-3b@v1": _model(16_384, sharded=True),
    "llama3.1-8b@v1": _model(8_192, sharded=True),
    "llama3.1-70b@v1": _model(4_096, sharded=True),
    "mistral-7b@v1": _model(8_192, sharded=True),
    "mistral-nemo-12b@v1": _model(8_192, sharded=True),
    "gemma-2b@v1": _model(16_384, sharded=True),
    "gemma-7b@v1": _model(8_192, sharded=True),
    **ALGORITHM_PRESETS,
}
"""Settings by model size, and by named algorithm. Sharding and recomputation start where 16 bytes a parameter (weights,
gradients, AdamW in fp32) would no longer leave room on one 80 GB device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """One setting that the manifest left out: camelCase ``path``, its ``value``, where it is from."""

    path: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A spec in which nothing is left to choose but what needs the model, the data or a runtime."""

    spec: RolloutRunSpec
    filled: tuple[Filled, ...]


def resolve(spec: RolloutRunSpec, *, engine: EngineName = "embedded") -> Resolved:
    """Fill what the manifest leaves out. Idempotent.

    ``engine`` is the runtime's default, used when ``actors.engine`` is unset.

    Raises ValueError for a preset that does not exist.
    """
    resolved, written, merged = _fill(spec, engine)
    named = spec.preset or DEFAULTS
    return Resolved(spec=resolved, filled=_report(resolved, written, merged, named))


def fill(spec: RolloutRunSpec, *, engine: EngineName = "embedded") -> RolloutRunSpec:
    """As ``resolve``, without the account of what was filled in, which costs as much again."""
    return _fill(spec, engine)[0]


def _fill(spec: RolloutRunSpec, engine: EngineName) -> tuple[RolloutRunSpec, Document, Document]:
    """The resolved spec, what was written, and that over its presets."""
    named = spec.preset or DEFAULTS
    written = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    merged = lay_presets(written, named)
    document = _complete(merged)
    document["preset"] = named
    derive(document, engine)
    return RolloutRunSpec.model_validate(_complete(document)), written, merged


def preset_names(named: str) -> list[str]:
    """The presets that a ``preset`` joins with ``+``; the first wins over the ones after it."""
    return named.split("+")


def lay_presets(written: Document, named: str) -> Document:
    """A spec as written over the presets it names. Raises ValueError for one that does not exist."""
    merged = written
    for name in preset_names(named):
        if name not in PRESETS:
            raise ValueError(f"preset {name!r} does not exist; there are {', '.join(PRESETS)}")
        merged = merge(RolloutRunSpec, merged, PRESETS[name])
    return merged


def _complete(document: Document) -> Document:
    """The document with every plain default written out."""
    spec = RolloutRunSpec.model_validate(document)
    return spec.model_dump(mode="json", exclude_none=True)


def canonical_json(model: ApiModel) -> bytes:
    """The bytes that a digest of ``model`` covers: sorted keys, no spaces, unset fields left out."""
    document = model.model_dump(mode="json", exclude_none=True)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def merge(model: type[ApiModel], written: Document, preset: Document) -> Document:
    """Lay ``written`` over ``preset``; lists and other union members are replaced, never mixed."""
    merged = dict(written)
    for name, value in preset.items():
        if name not in written:
            if not _excluded(model, name, written):
                merged[name] = value
        elif isinstance(value, dict) and (inner := model_at(model, name)) is not None:
            merged[name] = merge(inner, written[name], value)
    return merged


def _excluded(model: type[ApiModel], name: str, written: Document) -> bool:
    """Whether ``name`` is a union member and the manifest has chosen another one."""
    if not issubclass(model, OneOf):
        return False
    members = {model.model_fields[m].alias or m for m in model.union_members()}
    return name in members and any(member in written for member in members)


def model_at(model: type[ApiModel], alias: str) -> type[ApiModel] | None:
    """The model of the field with this camelCase name, or None when it is no object."""
    for field in model.model_fields.values():
        if field.alias == alias:
            for option in (field.annotation, *get_args(field.annotation)):
                if isinstance(option, type) and issubclass(option, ApiModel):
                    return option
    return None


def derive(document: Document, engine: EngineName) -> None:
    """Fill, in a complete document, what depends on other fields."""
    _derive_actors(document["actors"], engine)
    vllm = document["actors"]["engine"].get("vllm")
    if vllm is not None and document["numerics"]["mode"] == "Exact":
        vllm.setdefault("maxNumSeqs", 1)
    if (train := document.get("train")) is not None:
        tiny = str(document["model"].get("uri", "")).startswith("rollout://tiny-")
        _derive_learning_rates(train, tiny=tiny)
        _derive_train(train, document["actors"]["engine"])
    if (infer := document.get("infer")) is not None:
        infer["sampling"].setdefault("maxNewTokens", MAX_NEW_TOKENS)
    tokens = (train or {}).get("sampling", {}).get("maxNewTokens")
    for index, evaluation in enumerate(document["evaluations"]):
        _derive_evaluation(evaluation, index, tokens)


def _derive_actors(actors: Document, engine: EngineName) -> None:
    """The engine, and with a range the number to begin with: 1 is what the schema fills in for unset."""
    actors.setdefault("engine", {engine: {}})
    if (scale := actors.get("autoscale")) is not None and actors["replicas"] == 1:
        actors["replicas"] = scale["min"]


def _derive_learning_rates(train: Document, *, tiny: bool) -> None:
    ((name, settings),) = train["algorithm"].items()
    traits = TRAITS[name]
    rate = traits.tiny_learning_rate if tiny else traits.learning_rate
    _fill_learning_rate(train["optimizer"], rate)
    if "critic" in settings:
        rate = TINY_CRITIC_LEARNING_RATE if tiny else CRITIC_LEARNING_RATE
        _fill_learning_rate(settings["critic"]["optimizer"], rate)


def _derive_train(train: Document, engine: Document) -> None:
    if "maxSteps" not in train:
        train.setdefault("epochs", 1)
    for member, schedule in train["schedule"].items():
        if member != "constant" and "maxSteps" in train:
            schedule.setdefault("horizonSteps", train["maxSteps"])
    if TRAITS[next(iter(train["algorithm"]))].is_online:
        _derive_online(train, engine)


def _derive_online(train: Document, engine: Document) -> None:
    environment = train.setdefault("environment", {"builtin": {"name": "single-turn"}})
    name = environment.get("builtin", {}).get("name")
    train["sampling"].setdefault(
        "maxNewTokens", ENVIRONMENT_MAX_NEW_TOKENS.get(name, MAX_NEW_TOKENS)
    )
    own_forward = CAPABILITIES[next(iter(engine))].learner_forward and train["maxStaleness"] == 0
    if own_forward or train["oldLogprobs"] == "Actor":
        train.setdefault("importanceSampling", {"none": {}})
    else:
        train.setdefault("importanceSampling", {"tokenTruncated": {"cap": "2.0"}})
    if (penalty := train.get("overlongPenalty")) is not None:
        fifth = train["sampling"]["maxNewTokens"] // OVERLONG_PARTS
        penalty.setdefault("bufferTokens", max(1, fifth))
    for index, reward in enumerate(train["rewards"]):
        reward.setdefault("name", _reward_name(reward, index))


def _reward_name(reward: Document, index: int) -> str:
    names: tuple[Callable[[], str], ...] = (
        lambda: reward["builtin"]["name"],
        lambda: reward["python"]["function"],
        lambda: reward["plugin"]["path"].rstrip("/").rsplit("/", 1)[-1],
        lambda: reward["plugin"]["container"]["name"],
        lambda: reward["model"]["fromRun"]["name"],
    )
    for name in names:
        try:
            return name()
        except KeyError:
            continue
    return f"reward-{index}"


def _derive_evaluation(evaluation: Document, index: int, tokens: int | None) -> None:
    name = evaluation["suite"].get("builtin", {}).get("name", f"evaluation-{index}")
    evaluation.setdefault("name", name)
    evaluation.setdefault("split", "Selection" if evaluation.get("selects") else "Report")
    if tokens is not None:
        evaluation.setdefault("maxNewTokens", tokens)


def _fill_learning_rate(optimizer: Document, learning_rate: str) -> None:
    for member in optimizer.values():
        member.setdefault("learningRate", learning_rate)


def _report(
    spec: RolloutRunSpec, written: Document, merged: Document, named: str
) -> tuple[Filled, ...]:
    said, preset = set(_paths(written)), set(_paths(merged))
    return tuple(
        Filled(path=path, value=value, source=named if path in preset else DEFAULTS)
        for path, value in _settings(spec)
        if path not in said
    )


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """The path of every leaf of a document."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _paths(inner, f"{path}[{index}]")
    else:
        yield path


def _settings(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a model with its path; members without fields count, empty maps do not."""
    children = _children(value)
    for suffix, inner in children:
        yield from _settings(inner, f"{path}{suffix}".lstrip("."))
    if isinstance(value, ApiModel) and not children:
        yield path, {}
    elif value is not None and not isinstance(value, (ApiModel, tuple, dict)):
        yield path, repr(value) if isinstance(value, float) else value


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, ApiModel):
        fields = type(value).model_fields.items()
        return [(f".{field.alias}", getattr(value, name)) for name, field in fields]
    if isinstance(value, tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return [(f".{key}", item) for key, item in value.items()]
    return []

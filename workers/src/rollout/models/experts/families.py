"""Mixtures of experts: of which model types it is known how they choose, and among how many. Never loads torch.

A type is known where its router's module gives (logits, weights, ids) and its weights are the softmax of the logits at
those ids, over their sum or not: then other ids can be given to it. All others are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from rollout.errors import SpecError
from rollout.models.files import ModelFiles
from rollout.models.forwards import chooses_experts, forward_of
from rollout.models.scoring import read_config
from rollout.types import ExpertRoutes
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import ResolvedRun

EXPERTS_MAX = 1 << 15
"""Of a layer: ids are kept in 16 bits with a sign."""
NARROW_MAX = 256
"""Experts whose ids are a byte each."""


class _Family(NamedTuple):
    """The router's class, what its configuration calls the experts, and what it has where nothing is said."""

    router: str
    name: str
    experts: int
    top_k: int


_FAMILIES: Mapping[str, _Family] = {
    "mixtral": _Family("MixtralTopKRouter", "num_local_experts", 8, 2),
    "olmoe": _Family("OlmoeTopKRouter", "num_experts", 64, 8),
    "qwen2_moe": _Family("Qwen2MoeTopKRouter", "num_experts", 60, 4),
    "qwen3_moe": _Family("Qwen3MoeTopKRouter", "num_experts", 128, 8),
}
ROUTED = tuple(_FAMILIES)
"""Model types whose routes are told and replayed."""
_ROUTERS = frozenset(family.router for family in _FAMILIES.values())

_BESIDE = """
        afmoe deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5_moe exaone_moe glm4_moe glm4_moe_lite
        glm_moe_dsa hunyuan_v1_moe longcat_flash qwen3_next solar_open
"""
MLP_BESIDE_EXPERTS = frozenset(_BESIDE.split())
"""Model types with projections of an MLP beside the experts, which PEFT reads an adapter's as the experts'."""


class ExpertShape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Layers that choose, experts of each, and how many a token goes to."""

    layers: int
    experts: int
    top_k: int

    @property
    def position_bytes(self) -> int:
        """What the routes of one token take."""
        return self.empty().position_bytes

    def empty(self) -> ExpertRoutes:
        """Routes of no position yet."""
        return ExpertRoutes(
            num_layers=self.layers, top_k=self.top_k, wide=self.experts > NARROW_MAX
        )


def expert_shape(config: Mapping[str, Any]) -> ExpertShape:
    """That of a configuration whose ``chooses_experts``. Raises ValueError, with the reason, for what is not known."""
    kind = str(config.get("model_type"))
    if kind not in _FAMILIES:
        raise ValueError(
            f"how {kind} chooses experts is not known here, it is of {', '.join(ROUTED)}"
        )
    forward = forward_of(config)
    if forward.kind != "Packed":
        raise ValueError(f"experts are replayed in packed rows only: {forward.reason}")
    return _read_shape(kind, config)


def _read_shape(kind: str, config: Mapping[str, Any]) -> ExpertShape:
    family = _FAMILIES[kind]
    named = (config.get(name) for name in (family.name, "num_experts", "num_local_experts"))
    experts = next((int(one) for one in named if one is not None), family.experts)
    top_k = int(config.get("num_experts_per_tok") or family.top_k)
    if not 1 <= top_k <= experts <= EXPERTS_MAX:
        raise ValueError(
            f"it has {experts} experts a layer and takes {top_k}; expected at most {EXPERTS_MAX} and no"
            " more taken than there are"
        )
    return ExpertShape(layers=_num_layers(kind, config), experts=experts, top_k=top_k)


def count_experts(config: Mapping[str, Any]) -> tuple[int, int]:
    """Layers that choose, and parameters of one beside its attention and norms; none of a type that is not known."""
    kind = str(config.get("model_type"))
    if kind not in _FAMILIES or not chooses_experts(config):
        return 0, 0
    shape, hidden = _read_shape(kind, config), int(config["hidden_size"])
    width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    shared = int(config.get("shared_expert_intermediate_size") or 0) if kind == "qwen2_moe" else 0
    beside = 3 * hidden * shared + hidden if shared else 0
    return shape.layers, shape.experts * (3 * hidden * width + hidden) + beside


def _num_layers(kind: str, config: Mapping[str, Any]) -> int:
    """Layers that choose: of Qwen's types not those that the configuration makes dense."""
    layers = range(int(config["num_hidden_layers"]))
    if not kind.startswith("qwen"):
        return len(layers)
    dense, every = config.get("mlp_only_layers") or (), int(config.get("decoder_sparse_step") or 1)
    return sum(index not in dense and (index + 1) % every == 0 for index in layers)


def find_experts(spec: RolloutRunSpec, model: ModelFiles) -> ExpertShape | None:
    """Those that samples tell. Raises SpecError where the learner would train other experts than those that sampled."""
    train, engine = spec.train, spec.actors.chosen_engine
    if train is None or not train.algorithm.is_online:
        return None
    config = read_config(model.path)
    if not chooses_experts(config):
        return None
    whose = f"spec.train.algorithm.{train.algorithm.chosen}: {model.uri} routes each token to some of its experts"
    instead = "train a dense model, such as qwen3 or llama, or this one from rows (sft, dpo, kto)"
    if not engine.capabilities.expert_routes:
        because = engine.capabilities.no_routes_because
        raise SpecError(
            f"{whose}, and engine {engine.name} does not say to which{f' ({because})' if because else ''}, so that"
            f" the learner would train others than sampled; take actors.engine.embedded, or {instead}"
        )
    try:
        return expert_shape(config)
    except ValueError as error:
        raise SpecError(f"{whose}; {error}; {instead}") from error


def refuse_adapters_of_experts(spec: RolloutRunSpec, model: ModelFiles) -> None:
    """Raise SpecError for an adapter on projections that PEFT would read as those of experts."""
    lora = spec.model.lora
    if spec.train is None or lora is None or "Mlp" not in lora.targets:
        return
    config = read_config(model.path)
    kind = str(config.get("model_type"))
    dense = kind == "qwen3_moe" and _num_layers(kind, config) < int(config["num_hidden_layers"])
    if kind in MLP_BESIDE_EXPERTS or dense:
        raise SpecError(adapter_on_experts(kind))


def adapter_on_experts(kind: str) -> str:
    """Why such an adapter is refused, and what to write instead."""
    return (
        f"spec.model.lora.targets: Mlp: {kind} has experts, and PEFT would read the adapter of the projections"
        " beside them as the experts' own; use targets: [Attention]"
    )


def experts_of(resolved: ResolvedRun) -> ExpertShape | None:
    """Those of a run's policy, where its samples tell them."""
    found = resolved.experts
    if found is None:
        return None
    return ExpertShape(layers=found.layers, experts=found.experts, top_k=found.top_k)


def routers_of(model: Any) -> Iterator[tuple[Any, Any]]:
    """Every layer of a transformers model that has a known router, in order, with it; none of another model."""
    for layer in model.get_decoder().layers:
        for module in layer.modules():
            if type(module).__name__ in _ROUTERS:
                yield layer, module


def router_shape(model: Any) -> ExpertShape | None:
    """The shape that a built model has; None without a known router. Raises ValueError where layers differ."""
    found = {(router.num_experts, router.top_k) for _, router in routers_of(model)}
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"layers choose from different numbers of experts: {sorted(found)}")
    ((experts, top_k),) = found
    return ExpertShape(layers=sum(1 for _ in routers_of(model)), experts=experts, top_k=top_k)

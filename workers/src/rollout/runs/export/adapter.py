"""``adapter_config.json`` as PEFT reads it, from a run's settings and the names of its adapter's tensors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.weights.lora import PREFIX, A
from rollout_api.worker import WorkerConfig

ADAPTER_CONFIG = "adapter_config.json"
HUB = "hf://"
HEAD = f"{PREFIX}score."


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """What of an adapter its tensors do not say; ``base`` is a name on the hub or a folder, ``revision`` of a name."""

    rank: int
    alpha: int
    base: str
    revision: str | None = None
    scores: bool = False


def adapter_config(config: WorkerConfig, base: Path, names: Sequence[str]) -> dict[str, Any]:
    """Of a run's adapter; ``names`` are PEFT's."""
    lora, model = config.spec.model.lora, config.spec.model
    assert lora is not None
    uri = model.uri or ""
    facts = AdapterFacts(
        rank=lora.rank,
        alpha=lora.alpha,
        base=name_base(uri, base),
        revision=model.revision if uri.startswith(HUB) else None,
        scores=config.spec.trains_scorer,
    )
    return peft_config(facts, names)


def name_base(uri: str, folder: Path) -> str:
    """How a base is named: as the hub does, or by its folder."""
    return uri.removeprefix(HUB) if uri.startswith(HUB) else str(folder)


def peft_config(facts: AdapterFacts, names: Sequence[str]) -> dict[str, Any]:
    """What ``PeftModel.from_pretrained`` and vLLM need to know of the adapter; ``names`` are PEFT's."""
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if facts.scores else "CAUSAL_LM",
        "base_model_name_or_path": facts.base,
        "revision": facts.revision,
        "inference_mode": True,
        "r": facts.rank,
        "lora_alpha": facts.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": sorted(
            {name.removesuffix(A).rpartition(".")[2] for name in names if name.endswith(A)}
        ),
        "modules_to_save": ["score"] if any(name.startswith(HEAD) for name in names) else None,
    }

"""The other forms in which the learner computes a model of the zoo: under an adapter, with activations computed again, and with
weights that came as a delta. Each against a plain forward of dense weights, and its gradients."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from zoo_plain import GROUPS, gradient_gap, gradients, logprob_gap, plain

from rollout.errors import SpecError
from rollout.learner.forward.packed_rows import build_group_row, prepare_model, token_logprobs
from rollout.learner.model.adapter import LoraSettings, add_adapter
from rollout.learner.model.policy import recompute_activations
from rollout.objects.filesystem import FilesystemStore
from rollout.weights.digest import load_weights
from rollout.weights.mirror import WeightFiles
from rollout.weights.publisher import Publisher

LORA = LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp"))
ATTENTION = replace(LORA, targets=("Attention",))
"""Of a model with experts that PEFT would take the other projections for."""
SCALE = LORA.alpha / LORA.rank
CHANGED = 0.02
"""Of all numbers, by the version that comes as a delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """``reason``: why the form does not exist for this type; gaps in nats, and relative of gradients, where it does."""

    reason: str = ""
    gap: float = 0.0
    gradient_gap: float = 0.0


def compare_forms(dense: torch.nn.Module) -> dict[str, Gaps]:
    """Gaps of every form of a model that nothing has prepared, by its name."""
    return {name: form(dense) for name, form in FORMS.items()}


def under_an_adapter(dense: torch.nn.Module) -> Gaps:
    """An adapter that changes the model, against W + scale B A; its gradients follow from those of W."""
    model, merged = copy.deepcopy(dense), copy.deepcopy(dense)
    prepare_model(model)
    said = _add_adapter(model)
    if said == "no projections":
        return Gaps(reason=said)
    noise = torch.Generator().manual_seed(1)
    factors = {name: p for name, p in model.named_parameters() if "lora_" in name}
    with torch.no_grad():
        for name, factor in factors.items():
            if "lora_B" in name:
                factor.copy_(torch.randn(factor.shape, generator=noise) * 0.1)
        for name, (a, b) in _pairs(factors).items():
            merged.get_parameter(name).add_(SCALE * b @ a)
    want = plain(merged)
    whole = gradients(merged, want)
    wanted = {}
    for name, (a, b) in _pairs(factors).items():
        if name in whole:
            place = name.removesuffix(".weight")
            wanted[f"{place}.lora_A.default.weight"] = SCALE * b.detach().T @ whole[name]
            wanted[f"{place}.lora_B.default.weight"] = SCALE * whole[name] @ a.detach().T
    return replace(_gaps(model, want, wanted), reason=said)


def _add_adapter(model: torch.nn.Module) -> str:
    """On all projections, or those that may have one: what is to be said of it."""
    for settings, said in ((LORA, ""), (ATTENTION, "attention only")):
        with suppress(SpecError):
            add_adapter(model, settings, seed=0)
            return said
    return "no projections"


def _pairs(
    factors: Mapping[str, torch.Tensor],
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A and B by the name of the weight that they change."""
    return {
        name.replace(".lora_A.default.", "."): (a, factors[name.replace("lora_A", "lora_B")])
        for name, a in factors.items()
        if "lora_A" in name
    }


def checkpointed(dense: torch.nn.Module) -> Gaps:
    """Activations are computed again in the backward."""
    model, reference = copy.deepcopy(dense), copy.deepcopy(dense)
    prepare_model(model)
    try:
        recompute_activations(model)
    except ValueError:
        return Gaps(reason="not by transformers")
    layers = _count_recomputed(model)
    want = plain(reference)
    gaps = _gaps(model, want, gradients(reference, want))
    return gaps if any(layers) else Gaps(gap=float("inf"))


def _count_recomputed(model: torch.nn.Module) -> list[int]:
    """Gets an entry whenever a part of the model is computed under the checkpoint."""
    found: list[int] = []
    for module in model.modules():
        if checkpoint := getattr(module, "_gradient_checkpointing_func", None):

            def counted(*args, checkpoint=checkpoint, **kwargs):
                found.append(1)
                return checkpoint(*args, **kwargs)

            module._gradient_checkpointing_func = counted
    return found


def synced(dense: torch.nn.Module) -> Gaps:
    """Another version, stored as a delta and read as an actor does, against the same numbers set by hand."""
    model, reference = copy.deepcopy(dense), copy.deepcopy(dense)
    with tempfile.TemporaryDirectory() as folder:
        store = FilesystemStore(Path(folder) / "objects")
        publisher = Publisher(store, size_bytes_min=0)
        publisher.store(_weights(reference))
        _change(reference)
        stored = publisher.store(_weights(reference))
        assert stored.bases, "the second version was stored whole"
        read = load_weights(WeightFiles(store, Path(folder) / "mirror").path(stored.object))
        assert set(read) == {name for name, _ in model.named_parameters()}
        model.load_state_dict(read, strict=False)
    prepare_model(model)
    want = plain(reference)
    return _gaps(model, want, gradients(reference, want))


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _change(model: torch.nn.Module) -> None:
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                places = torch.rand(p.shape, generator=noise) < CHANGED
                p.copy_(torch.where(places, torch.randn(p.shape, generator=noise) * 0.2, p))


def _gaps(model: torch.nn.Module, want: torch.Tensor, wanted: Mapping[str, torch.Tensor]) -> Gaps:
    got = token_logprobs(model, build_group_row(GROUPS)).logprobs_C
    gap = logprob_gap(got, want)
    return Gaps(gap=gap, gradient_gap=gradient_gap(gradients(model, got), wanted))


FORMS: Mapping[str, Callable[[torch.nn.Module], Gaps]] = {
    "adapter": under_an_adapter,
    "checkpointed": checkpointed,
    "delta": synced,
}

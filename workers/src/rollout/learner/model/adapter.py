"""LoRA (Hu 2021, arXiv 2106.09685) in PEFT's form: a low-rank adapter is trained, dense weights are served.

    W' = cast(W + (alpha / rank) * B @ A)        A [rank, in], B [out, rank], both float32

Masters, gradients, optimizer and anchors hold A and B alone. What is published is W': engines, digests
and verification see a model like any other, and the bytes sent are those of a full model. The learner
computes with the very same W', made anew in each layer's forward and backward, so that its ratios are
those of the policy that was sampled, in BFloat16 too, where PEFT's own forward would be another policy.
The adapter starts at zero (B = 0, A by the run's seed), so with it switched off the model is the
reference, and no second copy is loaded.

The frozen projections may be held in 4 bits (``four_bits``): then W above is what they are restored to.
With FSDP2 base and adapter are sharded and gathered layer by layer as they are computed with.

Refuses: dropout, targets other than the projections of attention and MLP, projections that PEFT would read as
those of experts, 4 bits in shards.

Axes: N tokens, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Literal, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rollout.errors import SpecError
from rollout.learner.model.four_bits import (
    Packing,
    frozen_linear,
    load_bitsandbytes,
    packing_of,
    quantise,
    restore,
)
from rollout.learner.model.parallel import whole
from rollout.models.experts.families import adapter_on_experts
from rollout.seeds import derive_seed
from rollout.weights.lora import PREFIX, serves_adapter
from rollout_api.worker import WorkerConfig

ADAPTER = "default"
"""PEFT's name for the one adapter there is."""

OFF = "rollout_off"
"""A layer's own switch: PEFT's would freeze the adapter meanwhile, which FSDP2 takes note of."""

LoraTarget = Literal["Attention", "Mlp"]

PROJECTIONS: dict[LoraTarget, frozenset[str]] = {
    "Attention": frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"}),
    "Mlp": frozenset({"gate_proj", "up_proj", "down_proj", "gate_up_proj"}),
}
"""Names of linear layers in transformers' decoders (Llama, Qwen, Mistral, Gemma, Phi-3)."""

TRAINED_WHOLE = "score."
"""A reward model's head, which is new, is trained beside the adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The update has rank ``rank`` and is scaled by ``alpha / rank``.

    ``quantization`` is how the frozen projections are held; None as the policy's ``dtype``. ``served``:
    versions are the adapter itself (``rollout.weights.lora``), else the model with it merged in.
    """

    rank: int
    alpha: int
    targets: tuple[LoraTarget, ...]
    quantization: Literal["NF4"] | None = None
    served: bool = False


def build_lora(config: WorkerConfig) -> LoraSettings | None:
    """Settings from ``spec.model.lora``, None without it. Raises SpecError for what is not done yet."""
    lora = config.spec.model.lora
    if lora is None:
        return None
    if lora.dropout > 0:
        raise SpecError("spec.model.lora.dropout: the learner computes without dropout; use 0")
    if not {"Attention", "Mlp"}.issuperset(lora.targets):
        raise SpecError(
            "spec.model.lora.targets: an adapter goes on projections only; use Attention and Mlp"
        )
    if lora.quantization is not None:
        _check_four_bits(config)
    return LoraSettings(
        rank=lora.rank,
        alpha=lora.alpha,
        targets=cast("tuple[LoraTarget, ...]", lora.targets),
        quantization=lora.quantization,
        served=serves_adapter(config),
    )


def _check_four_bits(config: WorkerConfig) -> None:
    learner = config.spec.learner
    if learner.strategy.fsdp is not None and learner.num_processes > 1:
        raise SpecError(
            "spec.model.lora.quantization: weights in 4 bits are not sharded; use strategy: {ddp: {}},"
            " or remove quantization"
        )
    load_bitsandbytes()


def quantise_base(
    model: nn.Module, settings: LoraSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Hold the projections as ``settings`` ask, those without an adapter too; before ``add_adapter``."""
    if settings.quantization is not None:
        quantise(model, frozenset().union(*PROJECTIONS.values()), dtype, device)


def add_adapter(model: nn.Module, settings: LoraSettings, seed: int) -> None:
    """Put an adapter that changes nothing yet into ``model``; only it (and a new head) is trainable.

    Raises SpecError when the model has no such projections.
    """
    from peft import inject_adapter_in_model

    model.requires_grad_(requires_grad=False)
    inject_adapter_in_model(_config(model, settings), model, adapter_name=ADAPTER)
    for index, (_, layer) in enumerate(_layers(model)):
        noise = torch.Generator().manual_seed(derive_seed(seed, "adapter", index))
        a, b = _factors(layer)
        with torch.no_grad():
            # PEFT's own distribution (kaiming uniform, a = sqrt 5), from the run's seed.
            a.copy_((torch.rand(a.shape, generator=noise) * 2 - 1) / math.sqrt(a.shape[1]))
            b.zero_()
        layer.forward = MethodType(_forward, layer)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or name.startswith(TRAINED_WHOLE))


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The dense model under its own parameter names, whole, in the number format of its frozen weights.

    With shards a collective.
    """
    merged = {f"{name}.base_layer.weight": layer for name, layer in _layers(model)}
    found: dict[str, Tensor] = {}
    frozen = [p for p in model.parameters() if not p.requires_grad]
    dtype = next(p.dtype for p in frozen if p.is_floating_point())
    packed = any(packing_of(p) is not None for p in frozen)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                continue
            dense = _dense(parameter, merged.get(name)).to(dtype)
            # Where memory is saved, the dense model does not lie on the device as a whole.
            found[name.replace(".base_layer.", ".")] = dense.cpu() if packed else dense
    return found


def _dense(parameter: Tensor, layer: Any | None) -> Tensor:
    if layer is not None:
        return _merged(layer)
    packing = packing_of(parameter)
    return whole(parameter.detach()) if packing is None else restore(parameter.detach(), packing)


def _merged(layer: Any) -> Tensor:
    base = layer.base_layer.weight
    weight, a, b = (whole(part) for part in (restore(base, packing_of(base)), *_factors(layer)))
    return merge(weight, a, b, layer.scaling[ADAPTER])


def merge(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """``W'``, summed in float32, in the number format of ``weight``."""
    return (weight.float() + scale * (b @ a)).to(weight.dtype)


def _forward(layer: Any, x: Tensor) -> Tensor:
    """A layer's forward with its merged weight; stands in for PEFT's, which adds two products."""
    weight, bias = layer.base_layer.weight, layer.base_layer.bias
    if getattr(layer, OFF, False):
        return frozen_linear(x, weight, bias)
    a, b = _factors(layer)
    return _MergedLinear.apply(x, weight, bias, a, b, layer.scaling[ADAPTER], packing_of(weight))


class _MergedLinear(torch.autograd.Function):
    """``x W'^T + bias``; keeps no dense tensor, and gives A and B their gradients in low rank."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scale: float,
        packing: Packing | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale, ctx.packing = scale, packing
        return nn.functional.linear(x, merge(restore(weight, packing), a, b, scale), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        x, weight, a, b = ctx.saved_tensors
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ merge(restore(weight, ctx.packing), a, b, ctx.scale)
        grad_NO = grad.reshape(-1, grad.shape[-1]).float()
        x_NI = x.reshape(-1, x.shape[-1]).float()
        grad_a = ctx.scale * (grad_NO @ b).T @ x_NI
        grad_b = ctx.scale * grad_NO.T @ (x_NI @ a.T)
        return grad_x, None, None, grad_a, grad_b, None, None


class AdapterOff(nn.Module):
    """The model as it was before its adapter learned anything: the reference, without memory of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._held = (model,)  # not a submodule: its parameters are the policy's

    @property
    def config(self) -> Any:
        """The model's own."""
        return self._held[0].config

    def get_base_model(self) -> nn.Module:
        """The model itself, as PEFT calls it."""
        return self._held[0]

    def get_output_embeddings(self) -> nn.Module:
        """The model's own head, under transformers' name for it."""
        model: Any = self._held[0]
        return model.get_output_embeddings()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model, with the adapter switched off."""
        (model,) = self._held
        with _switched_off(model):
            return model(*args, **kwargs)


@contextmanager
def _switched_off(model: nn.Module) -> Iterator[None]:
    layers = [layer for _, layer in _layers(model)]
    for layer in layers:
        setattr(layer, OFF, True)
    try:
        yield
    finally:
        for layer in layers:
            setattr(layer, OFF, False)


def adapter_tensors(masters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter under PEFT's names, from its whole masters."""
    return {
        f"{PREFIX}{name.replace(f'.{ADAPTER}.', '.')}": tensor.detach()
        for name, tensor in masters.items()
    }


def export_adapter(
    model: nn.Module, masters: dict[str, Tensor], settings: LoraSettings, folder: Path
) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``, as PEFT loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in adapter_tensors(masters).items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = _config(model, settings)
    config.inference_mode = True
    if any(name.startswith(TRAINED_WHOLE) for name in masters):
        config.modules_to_save = [TRAINED_WHOLE.rstrip(".")]
    config.save_pretrained(str(folder))


def _config(model: nn.Module, settings: LoraSettings) -> Any:
    from peft import LoraConfig

    wanted = frozenset().union(*(PROJECTIONS[target] for target in settings.targets))
    there = {
        name.removesuffix(".base_layer").rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    if not wanted & there:
        raise SpecError(
            f"spec.model.lora.targets: {type(model).__name__} has none of the projections"
            f" {', '.join(sorted(wanted))}; its linear layers are {', '.join(sorted(there))}; train"
            " without lora"
        )
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=sorted(wanted & there),
        lora_dropout=0.0,
        bias="none",
    )
    _refuse_experts(model, config)
    return config


def _refuse_experts(model: Any, config: Any) -> None:
    """Raise SpecError where PEFT takes projections for those of experts, which no adapter here is on."""
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    read = deepcopy(config)
    try:
        convert_peft_config_for_transformers(read, model, None)
        of_experts = bool(read.target_parameters)
    except ValueError:  # some of the projections that it would take
        of_experts = True
    if of_experts:
        raise SpecError(adapter_on_experts(str(model.config.model_type)))


def _layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Layers that carry the adapter, by name, in the model's order."""
    from peft.tuners.lora import LoraLayer

    return [(name, m) for name, m in model.named_modules() if isinstance(m, LoraLayer)]


def _factors(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight

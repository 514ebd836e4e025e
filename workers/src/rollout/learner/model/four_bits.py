"""The frozen projections under an adapter, held in 4 bits: QLoRA (Dettmers 2023, arXiv 2305.14314) by bitsandbytes.

    W ~ NF4[index] * absmax        blocks of 64 values: 4 bits a value and one float32 a block, 4.5 bits in all

What the learner computes with, and what is served, is the *restored* weight (plus the adapter), in the
policy's number format: it is made anew in each layer's forward and backward and never kept. Step 0 is
therefore the restored model, not the files'. The scales are not quantised a second time as in the paper
(0.37 bits a value less): that takes a mean over all blocks, which depends on the number of threads.

bitsandbytes' own matrix product is not used: on CPUs it repacks weights and rounds otherwise than what is served.
Weights are handed to it as rows of one block each: 0.50.2 restores others wrongly on CPUs, without a word, where
64 does not divide a row.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rollout.errors import SpecError

BLOCK_SIZE = 64
QUANT_TYPE = "nf4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What a packed weight is restored by: bitsandbytes' state (scales and table), and the dense shape."""

    state: Any
    shape: torch.Size


def load_bitsandbytes() -> Any:
    """The library. Raises SpecError where it is not installed."""
    # It says at every import that a kernel which is not used here could not be downloaded.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        import bitsandbytes
    except ImportError as error:
        raise SpecError(
            "spec.model.lora.quantization: bitsandbytes is not installed; install it with"
            " pip install 'rollout-rl[qlora]', or remove the field"
        ) from error
    return bitsandbytes


def quantise(
    model: nn.Module, names: frozenset[str], dtype: torch.dtype, device: torch.device
) -> None:
    """Put the linear layers called ``names`` into 4 bits on ``device``; they are restored to ``dtype``."""
    for name, layer in list(model.named_modules()):
        parent, _, leaf = name.rpartition(".")
        if isinstance(layer, nn.Linear) and leaf in names:
            setattr(model.get_submodule(parent), leaf, _in_four_bits(layer, dtype, device))
    model.is_loaded_in_4bit = True  # pyrefly: ignore  # what PEFT chooses its layers by


def _in_four_bits(layer: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:
    bnb = load_bitsandbytes()
    dense = layer.weight.detach().to(device, dtype)
    packed, state = bnb.functional.quantize_4bit(
        _rows_of_blocks(dense),
        blocksize=BLOCK_SIZE,
        compress_statistics=False,
        quant_type=QUANT_TYPE,
    )
    found = bnb.nn.Linear4bit(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        compute_dtype=torch.float32,  # in which PEFT makes the adapter; nothing else reads it
        compress_statistics=False,
        quant_type=QUANT_TYPE,
        device="meta",
    )
    found.weight = bnb.nn.Params4bit(
        packed,
        requires_grad=False,
        quant_state=state,
        blocksize=BLOCK_SIZE,
        compress_statistics=False,
        quant_type=QUANT_TYPE,
        bnb_quantized=True,
    )
    found.weight.packing = Packing(state=state, shape=dense.shape)
    found.bias = layer.bias
    found.forward = MethodType(_forward, found)
    return found


def _rows_of_blocks(dense: Tensor) -> Tensor:
    whole = dense.numel() % BLOCK_SIZE == 0
    return dense.reshape(-1, BLOCK_SIZE) if whole else dense.reshape(1, -1)


def packing_of(weight: Tensor) -> Packing | None:
    """None for a plain weight."""
    return getattr(weight, "packing", None)


def restore(weight: Tensor, packing: Packing | None) -> Tensor:
    """The dense weight ``[out, in]``; a plain one (``packing`` None) as it is."""
    if packing is None:
        return weight
    dense = load_bitsandbytes().functional.dequantize_4bit(weight, packing.state)
    return dense.view(packing.shape)


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W^T + bias`` of a weight that is not trained, packed or plain."""
    packing = packing_of(weight)
    if packing is None:
        return nn.functional.linear(x, weight, bias)
    return _RestoredLinear.apply(x, weight, bias, packing)


def _forward(layer: Any, x: Tensor) -> Tensor:
    """Of a layer in 4 bits that carries no adapter."""
    return frozen_linear(x, layer.weight, layer.bias)


class _RestoredLinear(torch.autograd.Function):
    """Keeps the packed weight for the backward pass, not the dense one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, packing: Packing
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.packing = packing
        return nn.functional.linear(x, restore(weight, packing), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        (weight,) = ctx.saved_tensors
        return grad @ restore(weight, ctx.packing), None, None, None

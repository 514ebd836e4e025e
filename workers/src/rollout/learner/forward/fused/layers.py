"""Norms and gated MLPs of known models in one pass each, in half precision on a CUDA device; elsewhere their own forward.

The gradients of norms in float32 on the host take few passes, too: ``host_norm``.

A module is taken by the name of its class, and then held to its own forward on known numbers, once a kind: one that
computes anything else keeps its own, which is logged once.

Axes: N tokens, E hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from rollout.learner.forward.fused.host_norm import host_norm

log = logging.getLogger(__name__)

NORMS = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})
MLPS = frozenset({"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"})
ACTIVATIONS = frozenset({"SiLU", "SiLUActivation"})
SIZE_MAX = 8192
"""A row of a norm, which a program holds whole."""
TILE_VALUES, GATE_BLOCK = 2048, 1024
PROGRAMS_MAX = 512
"""Of a norm's backward: as many sums are added up afterwards."""


class FusedNorm:
    """Of a module with ``weight`` [E] and ``variance_epsilon``."""

    def __init__(self, module: nn.Module) -> None:
        self._module = cast("Any", module)
        self._plain: Callable[[torch.Tensor], torch.Tensor] = module.forward

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As the module's own."""
        weight = self._module.weight
        if _may_norm(states, weight) and _is_right(self._module, states):
            return self.compute(states)
        return self._plain(states)

    def compute(self, states: torch.Tensor) -> torch.Tensor:
        """In one pass; on the host in few."""
        norm = host_norm if states.dtype == torch.float32 else fused_norm
        return norm(states, self._module.weight, self._module.variance_epsilon)


class FusedMlp:
    """Of a module with ``gate_proj``, ``up_proj`` and ``down_proj`` around a SiLU."""

    def __init__(self, module: nn.Module) -> None:
        self._module = cast("Any", module)
        self._plain: Callable[[torch.Tensor], torch.Tensor] = module.forward

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As the module's own."""
        if _may(states, states) and _is_right(self._module, states):
            return self.compute(states)
        return self._plain(states)

    def compute(self, states: torch.Tensor) -> torch.Tensor:
        """With the activation and the gate in one pass."""
        gate, up = self._module.gate_proj(states), self._module.up_proj(states)
        if gate.dtype != up.dtype:  # an adapter around one of them may compute in float32
            return self._module.down_proj(self._module.act_fn(gate) * up)
        return self._module.down_proj(fused_gate(gate, up))


def fuse_layers(model: nn.Module) -> None:
    """Let a transformers model compute its known norms and MLPs so; idempotent."""
    for module in model.modules():
        kind = type(module).__name__
        if "rollout_fused" in vars(module):
            continue
        if kind in NORMS:
            _put(module, FusedNorm(module))
        elif kind in MLPS and type(module.act_fn).__name__ in ACTIVATIONS:
            _put(module, FusedMlp(module))


def fused_norm(states: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """States [.., E] over the root of their mean square, times the weight; differentiable."""
    return _Norm.apply(states, weight_E, eps)


def fused_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up; differentiable."""
    return _Gate.apply(gate, up)


def _put(module: nn.Module, fused: FusedNorm | FusedMlp) -> None:
    module.rollout_fused = fused  # pyrefly: ignore - marks the module
    module.forward = fused.forward  # pyrefly: ignore - of this one module


def _may_norm(states: torch.Tensor, weight_E: torch.Tensor) -> bool:
    if states.dtype == torch.float32:
        return weight_E.dtype == torch.float32 and states.device.type == "cpu"
    return _may(states, weight_E) and len(weight_E) <= SIZE_MAX


def _may(states: torch.Tensor, weight: torch.Tensor) -> bool:
    half = states.dtype in {torch.bfloat16, torch.float16}
    return half and states.is_cuda and weight.dtype == states.dtype


def _is_right(module: nn.Module, states: torch.Tensor) -> bool:
    return is_right(type(module), states.shape[-1], states.device, states.dtype)


@lru_cache(maxsize=64)
def is_right(kind: type[nn.Module], size: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels give there what modules of this kind give for known numbers; asked once, logged if not."""
    from rollout.learner.forward.fused import trial

    try:
        with trial.aside():
            error = max(trial.layer_errors(kind, size, device, dtype))
    except (ImportError, OSError, RuntimeError, ValueError, TypeError, AttributeError) as problem:
        log.warning("%s computes its own forward on %s error=%r", kind.__name__, device, problem)
        return False
    limit = trial.ERROR_MAX[dtype]
    if not error <= limit:
        log.warning("%s computes its own forward on %s error=%.3g", kind.__name__, device, error)
    return error <= limit


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
        x_NE = states.contiguous().view(-1, len(weight_E))
        out_NE = torch.empty_like(x_NE)
        scales_N = torch.empty(len(x_NE), dtype=torch.float32, device=x_NE.device)
        tile = _tile(len(weight_E))
        _kernels().norm_rows[(-(-len(x_NE) // tile["ROWS"]),)](
            x_NE, weight_E, out_NE, scales_N, len(x_NE), len(weight_E), eps, **tile
        )
        ctx.save_for_backward(x_NE, weight_E, scales_N)
        return out_NE.view(states.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        x_NE, weight_E, scales_N = ctx.saved_tensors
        grad_x = torch.empty_like(x_NE)
        tile = _tile(len(weight_E))
        programs = min(PROGRAMS_MAX, -(-len(x_NE) // tile["ROWS"]))
        sums = torch.empty(programs, len(weight_E), dtype=torch.float32, device=x_NE.device)
        _kernels().norm_gradients[(programs,)](
            *(grad.contiguous(), x_NE, weight_E, scales_N, grad_x, sums),
            *(len(x_NE), len(weight_E)),
            **tile,
        )
        wants_weight = ctx.needs_input_grad[1]
        grad_E = sums.sum(0).to(weight_E.dtype) if wants_weight else None
        return grad_x.view(grad.shape), grad_E, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        count = gate.numel()
        _kernels().gate_values[(-(-count // GATE_BLOCK),)](gate, up, out, count, BLOCK=GATE_BLOCK)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        count = gate.numel()
        _kernels().gate_gradients[(-(-count // GATE_BLOCK),)](
            grad.contiguous(), gate, up, grad_gate, grad_up, count, BLOCK=GATE_BLOCK
        )
        return grad_gate, grad_up


def _tile(size: int) -> dict[str, int]:
    block = 1 << max(4, (size - 1).bit_length())
    warps = min(16, max(4, block // 512))
    return {"ROWS": max(1, TILE_VALUES // block), "BLOCK": block, "num_warps": warps}


def _kernels() -> ModuleType:
    from rollout.learner.forward.fused import layer_kernels

    return layer_kernels

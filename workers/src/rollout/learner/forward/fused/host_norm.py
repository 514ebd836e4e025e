"""A norm over the root of the mean square on the host, in float32: the values of transformers' own, bit for bit.

Only the way back is another one: left to autograd, a dozen passes read and write all states, here six do.

Axes: N tokens, E hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable


def host_norm(states: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """States [.., E] over the root of their mean square, times the weight; differentiable. float32, on the host."""
    return _HostNorm.apply(states, weight_E, eps)


class _HostNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
        x_NE = states.reshape(-1, len(weight_E))
        scales_N1 = x_NE.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x_NE, weight_E, scales_N1)
        return (x_NE * scales_N1).mul_(weight_E).view(states.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        x_NE, weight_E, scales_N1 = ctx.saved_tensors
        grad_NE = grad.reshape(x_NE.shape)
        scaled_NE = x_NE * scales_N1
        products_NE = grad_NE * scaled_NE
        grad_E = products_NE.sum(0) if ctx.needs_input_grad[1] else None
        along_N1 = torch.mv(products_NE, weight_E).unsqueeze(1).div_(-len(weight_E))
        grad_x = torch.mul(grad_NE, weight_E, out=products_NE)
        grad_x.addcmul_(scaled_NE, along_N1).mul_(scales_N1)
        return grad_x.view(grad.shape), grad_E, None

"""The head's scores of half-precision states on a CUDA device: two passes over logits that exist in part.

The forward takes a part of the positions at a time; what it keeps of each is its log-sum-exp. With that the backward
takes a part of the vocabulary at a time instead: the head's gradient is then one product a part, written once, and
what is added up, in float32, is the states' gradient, which is small.

Axes: U predicting positions, C scored tokens, V vocabulary, E hidden size, B ids of a part of the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from rollout.learner.forward.logprobs import ScoresWanted

log = logging.getLogger(__name__)

PART_VALUES = 1 << 27
"""Logits that exist at a time: 256 MiB in half precision."""
MULTIPLE = 128
"""Rows and ids of a part are a multiple of it, for the matrix units."""
ROW_BLOCK, GRADIENT_BLOCK = 8192, 1024
"""Logits that a program reads at a time, and that one turns into gradients."""

Scores = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Log-probabilities [C], and of every position its entropy and mean log-probability [U]; float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """Scored tokens sorted by position: those of position u are ``starts[u]`` to ``starts[u + 1]`` of the sorted."""

    starts: torch.Tensor
    order: torch.Tensor
    targets: torch.Tensor


def fused_scores(
    states_UE: torch.Tensor,
    weight_VE: torch.Tensor,
    bias_V: torch.Tensor | None,
    wanted: ScoresWanted,
) -> Scores:
    """Of softmax((states weight' + bias) / temperature); differentiable in states, weight and bias.

    Entropies and means are there whether asked for or not.
    """
    return _FusedHead.apply(states_UE, weight_VE, bias_V, wanted)


def suits(states_UE: torch.Tensor) -> bool:
    """Whether these states are scored here: half precision, on a CUDA device where the kernels are right."""
    half = states_UE.dtype in {torch.bfloat16, torch.float16}
    return half and states_UE.is_cuda and is_right(states_UE.device, states_UE.dtype)


@lru_cache(maxsize=16)
def is_right(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels compile there and give what plain products give; asked once a process, logged if not."""
    from rollout.learner.forward.fused import trial

    try:
        with trial.aside():
            error = trial.head_error(device, dtype)
    except (ImportError, OSError, RuntimeError, ValueError) as problem:
        log.warning("the head is computed in plain products on %s error=%r", device, problem)
        return False
    if not error <= trial.ERROR_MAX[dtype]:
        log.warning("the head is computed in plain products on %s error=%.3g", device, error)
    return error <= trial.ERROR_MAX[dtype]


Calls = Callable[..., Scores]
"""As ``fused_scores``."""


class _FusedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_UE: torch.Tensor,
        weight_VE: torch.Tensor,
        bias_V: torch.Tensor | None,
        wanted: ScoresWanted,
    ) -> Scores:
        num_rows, vocab_size = len(states_UE), len(weight_VE)
        tokens = _sort(wanted, num_rows)
        logprobs_C = _floats(states_UE, len(wanted.targets_C))
        lse_U, entropy_U, mean_U = (_floats(states_UE, num_rows) for _ in range(3))
        for rows in _parts(num_rows, vocab_size):
            logits_PV = nn.functional.linear(states_UE[rows], weight_VE, bias_V)
            _kernels().row_scores[(len(logits_PV),)](
                *(logits_PV, tokens.starts, tokens.order, tokens.targets),
                *(logprobs_C, lse_U, entropy_U, mean_U, *_bars(wanted, lse_U)),
                *(rows.start, vocab_size, 1.0 / wanted.temperature),
                BARS=_has_bars(wanted),
                BLOCK=min(ROW_BLOCK, _power(vocab_size)),
                num_warps=8,
            )
            del logits_PV  # before the next part's are made
        ctx.save_for_backward(states_UE, weight_VE, bias_V, lse_U, entropy_U)
        ctx.wanted, ctx.tokens = wanted, tokens
        ctx.set_materialize_grads(False)
        return logprobs_C, entropy_U, mean_U

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        ctx: Any,
        grad_C: torch.Tensor | None,
        grad_entropy_U: torch.Tensor | None,
        grad_mean_U: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        states_UE, weight_VE, bias_V, lse_U, _ = ctx.saved_tensors
        wants_states, wants_weight, wants_bias, _ = ctx.needs_input_grad
        sums_UE = torch.zeros_like(states_UE, dtype=torch.float32) if wants_states else None
        grad_VE = torch.empty_like(weight_VE) if wants_weight else None
        grad_V = torch.empty_like(weight_VE[:, 0]) if wants_bias else None
        grads = (
            torch.zeros_like(lse_U[:1]).expand(len(ctx.tokens.order)) if grad_C is None else grad_C
        )[ctx.tokens.order].contiguous()
        for ids in _parts(len(weight_VE), len(states_UE)):
            bias_B = None if bias_V is None else bias_V[ids]
            logits_UB = nn.functional.linear(states_UE, weight_VE[ids], bias_B)
            _to_gradients(ctx, logits_UB, ids.start, grads, (grad_entropy_U, grad_mean_U))
            if sums_UE is not None:
                sums_UE += _wide_product(logits_UB, weight_VE[ids])
            if grad_VE is not None:
                torch.mm(logits_UB.t(), states_UE, out=grad_VE[ids])
            if grad_V is not None:
                grad_V[ids] = logits_UB.sum(0, dtype=torch.float32)
            del logits_UB  # before the next part's are made
        grad_UE = None if sums_UE is None else sums_UE.to(states_UE.dtype)
        return grad_UE, grad_VE, grad_V, None


def _to_gradients(
    ctx: Any,
    logits_UB: torch.Tensor,
    column: int,
    grads: torch.Tensor,
    of_rows: tuple[torch.Tensor | None, torch.Tensor | None],
) -> None:
    """In place; ``grads`` are those of the sorted tokens, ``of_rows`` those of entropies and means."""
    _, weight_VE, _, lse_U, entropy_U = ctx.saved_tensors
    tokens, wanted = ctx.tokens, ctx.wanted
    entropies, means = (lse_U if one is None else one.contiguous() for one in of_rows)
    num_rows, width = logits_UB.shape
    block = min(GRADIENT_BLOCK, _power(width))
    _kernels().logit_gradients[(num_rows, -(-width // block))](
        *(logits_UB, tokens.starts, tokens.targets, grads),
        *(lse_U, entropy_U, entropies, means, *_bars(wanted, lse_U)),
        *(column, width, len(weight_VE), 1.0 / wanted.temperature),
        ENTROPY=of_rows[0] is not None,
        MEAN=of_rows[1] is not None,
        BARS=_has_bars(wanted),
        BLOCK=block,
    )


def _sort(wanted: ScoresWanted, num_rows: int) -> _Tokens:
    sources, order = wanted.source_C.sort(stable=True)
    rows = torch.arange(num_rows + 1, device=order.device)
    return _Tokens(
        starts=torch.searchsorted(sources, rows), order=order, targets=wanted.targets_C[order]
    )


def _parts(length: int, other: int) -> Iterator[slice]:
    """Of a side of so many logits, that the other side has ``other`` of."""
    size = max(1, PART_VALUES // max(1, other))
    size = max(size - size % MULTIPLE, min(size, MULTIPLE))
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _bars(wanted: ScoresWanted, stand_in: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if wanted.barred_U is None or wanted.barred_V is None:
        return stand_in, stand_in
    return wanted.barred_U.view(torch.uint8), wanted.barred_V.view(torch.uint8)


def _has_bars(wanted: ScoresWanted) -> bool:
    return wanted.barred_U is not None and wanted.barred_V is not None


def _floats(like: torch.Tensor, count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.float32, device=like.device)


def _wide_product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """In float32; CPUs, where kernels are only interpreted, have no product that gives it."""
    if one.is_cuda:
        return torch.mm(one, other, out_dtype=torch.float32)
    return one.float() @ other.float()


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _kernels() -> ModuleType:
    from rollout.learner.forward.fused import head_kernels

    return head_kernels

"""Scores of tokens straight from hidden states: the head's logits exist for a part of the rows at a time.

Of 4,000 tokens and 150,000 token ids the logits alone are 2.4 GB, and a loss keeps several of them. Here each
part is scored and dropped, and computed again in the backward, which adds up the head's gradient in float32. On a
CUDA device half precision takes two passes of its own over a part (``fused.head``).

A model is asked once whether what it calls logits is what its head gave (``HeadScores.passes``): one that scales
or caps them afterwards, or whose head is more than a matrix, goes on having them whole. So do rows of few logits,
where nothing would be saved.

Axes: U predicting positions, C scored tokens, V vocabulary, E hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from rollout.learner.forward.fused.head import fused_scores, suits
from rollout.learner.forward.logprobs import (
    BARRED_LOGIT,
    ScoresWanted,
    TokenStats,
    logit_gradient,
)

PART_VALUES = 1 << 25
"""Logits that exist at a time: 128 MiB in float32, of which the backward holds about four."""


class HeadScores:
    """Sits in a model's language head. While something is ``wanted`` the head gives scores in place of logits."""

    def __init__(self, head: nn.Linear) -> None:
        self._head = head
        self._wanted: ScoresWanted | None = None
        self._given: torch.Tensor | None = None
        self.passes: bool | None = None

    @property
    def vocab_size(self) -> int:
        """Logits of a position, V."""
        return self._head.out_features

    def suits(self, num_positions: int) -> bool:
        """Whether rows of so many predicting positions are worth scoring in parts, and may be."""
        return bool(self.passes) and num_positions * self.vocab_size > PART_VALUES

    def score(
        self, model: nn.Module, arguments: dict[str, Any], wanted: ScoresWanted
    ) -> TokenStats:
        """Per scored token, as ``selected_logprobs`` gives them."""
        self._wanted = wanted
        try:
            found_KC = model(**arguments).logits
        finally:
            self._wanted = None
        parts = iter(found_KC)
        return TokenStats(
            logprobs_C=next(parts),
            entropy_C=next(parts) if wanted.entropy else None,
            mean_logprobs_C=next(parts) if wanted.spread else None,
        )

    def logits(self, model: nn.Module, arguments: dict[str, Any]) -> torch.Tensor:
        """The model's own [U, V]; learns whether they are the head's."""
        logits_1UV = model(**arguments).logits
        self.passes = logits_1UV is self._given
        self._given = None
        return logits_1UV[0]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """In place of the head's: logits [.., V], or what is wanted of them, float32 [K, C]."""
        if self._wanted is None:
            logits = nn.functional.linear(states, self._head.weight, self._head.bias)
            self._given = logits if self.passes is None else None
            return logits
        wanted = self._wanted
        scores = fused_scores if suits(states) else _PartsOfHead.apply
        logprobs_C, entropy_U, mean_U = scores(
            states[0], self._head.weight, self._head.bias, wanted
        )
        of_positions = [
            x[wanted.source_C]
            for x, asked in ((entropy_U, wanted.entropy), (mean_U, wanted.spread))
            if asked and x is not None
        ]
        return torch.stack([logprobs_C, *of_positions])


def put_scores(model: nn.Module) -> None:
    """Let a transformers causal LM score in its head, where that is one matrix; idempotent."""
    head = cast("Any", model).get_output_embeddings()
    if type(head) is nn.Linear and not isinstance(vars(head).get("rollout_scores"), HeadScores):
        head.rollout_scores = HeadScores(head)  # pyrefly: ignore - marks the module
        head.forward = head.rollout_scores.forward  # pyrefly: ignore - of this one module


def scores_of(model: nn.Module) -> HeadScores | None:
    """What sits in the model's head; None where nothing does: an adapter lies around it, or a wrapper hides it."""
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find else None
    return vars(head).get("rollout_scores") if type(head) is nn.Linear else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Positions ``rows`` of the U, and of the scored tokens those that they predict, by their numbers."""

    rows: slice
    scored: torch.Tensor


class _PartsOfHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_UE: torch.Tensor,
        weight_VE: torch.Tensor,
        bias_V: torch.Tensor | None,
        wanted: ScoresWanted,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        parts = list(_parts(wanted.source_C, states_UE.shape[0], weight_VE.shape[0]))
        exact = torch.promote_types(states_UE.dtype, torch.float32)
        logprobs_C = states_UE.new_empty(wanted.source_C.shape, dtype=exact)
        entropies, means = [], []
        for part in parts:
            logp_PV = _logp(states_UE[part.rows], weight_VE, bias_V, wanted, part)
            source, targets = _scored(wanted, part)
            logprobs_C[part.scored] = logp_PV[source, targets]
            if wanted.entropy:
                entropies.append(-(logp_PV.exp() * logp_PV).sum(-1))
            if wanted.spread:
                means.append(logp_PV.mean(-1))
        entropy_U = torch.cat(entropies) if wanted.entropy else None
        ctx.save_for_backward(states_UE, weight_VE, bias_V, entropy_U)
        ctx.wanted, ctx.parts = wanted, parts
        ctx.set_materialize_grads(False)
        return logprobs_C, entropy_U, torch.cat(means) if wanted.spread else None

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        ctx: Any, *grads: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        states_UE, weight_VE, bias_V, entropy_U = ctx.saved_tensors
        wants_states, wants_weight, wants_bias, _ = ctx.needs_input_grad
        exact = torch.promote_types(states_UE.dtype, torch.float32)
        grad_UE = torch.empty_like(states_UE) if wants_states else None
        grad_VE = torch.zeros_like(weight_VE, dtype=exact) if wants_weight else None
        grad_V = torch.zeros_like(bias_V, dtype=exact) if wants_bias else None
        for part in ctx.parts:
            states_PE = states_UE[part.rows]
            logp_PV = _logp(states_PE, weight_VE, bias_V, ctx.wanted, part)
            grad_PV = _gradient(logp_PV, entropy_U, ctx.wanted, part, grads)
            grad_PV = grad_PV.to(states_UE.dtype)
            if grad_UE is not None:
                grad_UE[part.rows] = grad_PV @ weight_VE
            if grad_VE is not None and grad_VE.dtype == grad_PV.dtype:
                grad_VE.addmm_(grad_PV.t(), states_PE)
            elif grad_VE is not None:
                grad_VE += grad_PV.t() @ states_PE
            if grad_V is not None:
                grad_V += grad_PV.sum(0, dtype=exact)
        return (
            grad_UE,
            None if grad_VE is None else grad_VE.to(weight_VE.dtype),
            None if grad_V is None else grad_V.to(weight_VE.dtype),
            None,
        )


def _parts(source_C: torch.Tensor, num_positions: int, vocab_size: int) -> Iterator[_Part]:
    rows = max(1, PART_VALUES // vocab_size)
    starts = list(range(0, num_positions, rows))
    order_C = source_C.argsort(stable=True)
    bounds = torch.tensor(starts, device=source_C.device)
    edges = [*torch.searchsorted(source_C[order_C], bounds).tolist(), len(source_C)]
    for start, first, last in zip(starts, edges, edges[1:], strict=False):
        yield _Part(rows=slice(start, min(start + rows, num_positions)), scored=order_C[first:last])


def _scored(wanted: ScoresWanted, part: _Part) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the part's scored tokens: the row of the part that predicts each, and its id."""
    return wanted.source_C[part.scored] - part.rows.start, wanted.targets_C[part.scored]


def _barred(wanted: ScoresWanted, part: _Part) -> torch.Tensor | None:
    if wanted.barred_U is None or wanted.barred_V is None:
        return None
    return wanted.barred_U[part.rows, None] & wanted.barred_V


def _logp(
    states_PE: torch.Tensor,
    weight_VE: torch.Tensor,
    bias_V: torch.Tensor | None,
    wanted: ScoresWanted,
    part: _Part,
) -> torch.Tensor:
    logits_PV = nn.functional.linear(states_PE, weight_VE, bias_V)
    barred_PV = _barred(wanted, part)
    if barred_PV is not None:
        logits_PV = logits_PV.masked_fill_(barred_PV, BARRED_LOGIT)
    if wanted.temperature != 1.0:
        logits_PV = logits_PV / wanted.temperature
    exact = torch.promote_types(logits_PV.dtype, torch.float32)
    return torch.log_softmax(logits_PV, dim=-1, dtype=exact)


def _gradient(
    logp_PV: torch.Tensor,
    entropy_U: torch.Tensor | None,
    wanted: ScoresWanted,
    part: _Part,
    grads: tuple[torch.Tensor | None, ...],
) -> torch.Tensor:
    """Of the head's logits, [P, V]."""
    grad_C, grad_entropy_U, grad_mean_U = grads
    source, targets = _scored(wanted, part)
    grad_PV = logit_gradient(
        logp_PV,
        source,
        source * logp_PV.shape[1] + targets,
        None if entropy_U is None else entropy_U[part.rows],
        (
            None if grad_C is None else grad_C[part.scored],
            None if grad_entropy_U is None else grad_entropy_U[part.rows],
            None if grad_mean_U is None else grad_mean_U[part.rows],
        ),
    )
    barred_PV = _barred(wanted, part)
    if barred_PV is not None:
        grad_PV.masked_fill_(barred_PV, 0.0)
    return grad_PV if wanted.temperature == 1.0 else grad_PV.div_(wanted.temperature)

"""The critic of PPO: a value model that is trained beside the policy and never served to actors.

A value is what a token's sampling is expected to earn from there on, computed from the tokens *before*
it: the same hidden state that the policy predicts the token from. The model is the policy's starting
model (or ``critic.model``) with its head replaced by one scalar; parameters, gradients, shards and
float32 masters are kept by the same class as the policy's.

Axes: U predicting positions of a row, C scored tokens, H hidden units.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rollout.learner.config.ppo import CriticSettings
from rollout.learner.forward.packed_rows import PackedRow, row_states
from rollout.learner.model.optim import build_optimizer, set_learning_rate
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import DTYPES, Policy, load_model, recompute_activations
from rollout.learner.model.scorer import load_scorer
from rollout.models.scoring import is_scorer
from rollout.seeds import derive_seed


class ValueModel(nn.Module):
    """A transformer without its language head, and a scalar head; the head computes in float32."""

    def __init__(self, decoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head

    def get_decoder(self) -> nn.Module:
        """The transformer, as transformers' own models call it."""
        return self.decoder

    def gradient_checkpointing_enable(self, options: dict[str, Any]) -> None:
        """Recompute activations in the backward pass."""
        self.decoder.gradient_checkpointing_enable(options)  # pyrefly: ignore - to torch an attribute may be a tensor

    def forward(self, row: PackedRow) -> Tensor:
        """Values ``[U]``, float32, at the row's predicting positions."""
        hidden_UH = row_states(self.decoder, row, row.predict_U)
        weight, bias = self.head.weight.float(), self.head.bias.float()
        return nn.functional.linear(hidden_UH.float(), weight, bias)[:, 0]


def token_values(model: nn.Module, row: PackedRow) -> Tensor:
    """Value ``[C]`` of the state in which each scored token was sampled; float32, differentiable."""
    return model(row).index_select(0, row.source_C)


def build_value_model(path: Path, seed: int) -> ValueModel:
    """The model in ``path``, float32; a reward model with its own head, any other with a new one.

    A new head's weights are drawn from N(0, 1 / (H + 1)^2) by the run's seed and its bias is 0, so that
    values begin near 0 (OpenRLHF 0.11; zero itself would keep the first update from the transformer).
    Raises SpecError as ``load_model``, and for a reward model whose weights have no head.
    """
    if is_scorer(json.loads((path / "config.json").read_text())):
        scorer = load_scorer(path)
        head = nn.Linear(scorer.score.in_features, 1)
        with torch.no_grad():
            head.weight.copy_(scorer.score.weight)
            head.bias.zero_()
        return ValueModel(scorer.model, head)
    decoder = load_model(path).get_decoder()  # pyrefly: ignore - to torch an attribute may be a tensor
    width = int(decoder.config.hidden_size)
    head = nn.Linear(width, 1)
    noise = torch.Generator().manual_seed(derive_seed(seed, "critic", 0))
    with torch.no_grad():
        head.weight.copy_(torch.randn(1, width, generator=noise) / (width + 1))
        head.bias.zero_()
    return ValueModel(decoder, head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """What a critic's update changes and obeys. ``held`` owns its parameters and gradients."""

    held: Policy
    optimizer: Optimizer
    settings: CriticSettings

    @property
    def model(self) -> nn.Module:
        """The module to compute with."""
        return self.held.model

    def finish_gradient(self) -> Tensor:
        """Add up the ranks' gradients; the norm, before clipping."""
        self.held.sum_gradients()
        return self.held.gradient_norm()

    def apply(self, norm: Tensor, rate: float) -> None:
        """Clip the gradient and take the optimizer's step."""
        set_learning_rate(self.optimizer, rate)
        self.held.update(self.optimizer, norm, max_norm=self.settings.max_grad_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticPlan:
    """How a critic is made: from which folder, in which number format, by which seed, its optimizer's states where."""

    path: Path
    dtype: str
    seed: int
    checkpointing: bool
    offloads: bool


def build_critic(plan: CriticPlan, settings: CriticSettings, parallel: Parallel) -> Critic:
    """A critic and its optimizer. Raises SpecError for an unknown model."""
    model = build_value_model(plan.path, plan.seed)
    if plan.checkpointing:
        recompute_activations(model)
    held = Policy(model, DTYPES[plan.dtype], parallel)
    optimizer = build_optimizer(held.masters.values(), settings.optimizer, offloads=plan.offloads)
    return Critic(held=held, optimizer=optimizer, settings=settings)

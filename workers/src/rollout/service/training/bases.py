"""The base models: loaded once, their frozen weights shared by every adapter over them.

Refuses what cannot be shared or sampled from: a base is a model folder whose rows the learner computes packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from rollout.errors import SpecError
from rollout.learner.forward.packed_rows import is_packed
from rollout.learner.model.policy import drop_nothing, load_model
from rollout.models.resolve import resolve_model
from rollout.models.shapes import read_shape
from rollout.rendering.build import build_renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBase:
    """One base model. ``weights`` are float32 and frozen; ``end_ids`` end a completion unless a client says otherwise."""

    name: str
    folder: Path
    digest: str
    vocab: int
    context: int
    end_ids: tuple[int, ...]
    weights: Mapping[str, torch.Tensor]

    def build(self, *, shares: bool = True) -> nn.Module:
        """A module over the shared weights, ready for an adapter; with ``shares`` False over a copy that may be trained."""
        model = load_model(self.folder)
        for name, parameter in model.named_parameters():
            parameter.data = self.weights[name] if shares else self.weights[name].clone()
        drop_nothing(model)
        return model


def load_base(target: str) -> TrainingBase:
    """``[NAME=]MODEL``: fetch and load it. Raises SpecError, ModelNotFound."""
    name, uri = split_target(target)
    files = resolve_model(uri)
    shape = read_shape(files.path)
    model = load_model(files.path)
    if not is_packed(model):
        raise SpecError(
            f"--train {uri}: the learner computes this model sequence by sequence, which the service does not"
            " offer; train it with rollout run"
        )
    return TrainingBase(
        name=name,
        folder=files.path,
        digest=files.digest,
        vocab=shape.vocab,
        context=shape.context,
        end_ids=tuple(build_renderer(files.path).stop_token_ids),
        weights={name: parameter.detach() for name, parameter in model.named_parameters()},
    )


def split_target(target: str) -> tuple[str, str]:
    """Name and URI; a model without a name of its own is called as its URI is written."""
    head, equals, rest = target.partition("=")
    if equals and "://" not in head:
        return head, rest
    return target, target

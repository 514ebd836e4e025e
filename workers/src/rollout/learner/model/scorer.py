"""A transformer with one scalar head: what a reward model is, in training and when it scores.

Its parameters carry the names of transformers' sequence classification (``model.*``, ``score.weight``),
so the weights load there as they are. The score is read where transformers reads it: at the last token
of the answer that is not the padding token.

Axes: S answers, H hidden units.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from rollout.errors import SpecError
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    PackedRow,
    build_group_row,
    prepare_model,
    row_states,
)
from rollout.models.scoring import CAUSAL, HEAD, SCORING, find_head, is_scorer, no_head
from rollout.rendering.tokenizer import load_tokenizer
from rollout.seeds import derive_seed

Ids = tuple[int, ...]
Answers = tuple[Ids, Sequence[Ids]]
"""A prompt and the answers to it, each at least one token."""


class ScoringModel(nn.Module):
    """A transformer and its head; the head computes in float32 at least. ``pad_id`` is never scored."""

    def __init__(self, decoder: nn.Module, head: nn.Linear, pad_id: int) -> None:
        super().__init__()
        self.model = decoder
        self.score = head
        self.pad_id = pad_id

    def get_decoder(self) -> nn.Module:
        """The transformer, as transformers' own models call it."""
        return self.model

    def gradient_checkpointing_enable(self, options: dict[str, Any]) -> None:
        """Recompute activations in the backward pass."""
        self.model.gradient_checkpointing_enable(options)  # pyrefly: ignore - to torch an attribute may be a tensor

    def forward(self, row: PackedRow, positions_S: Tensor) -> Tensor:
        """Scores ``[S]`` at positions of the row."""
        hidden_SH = row_states(self.model, row, positions_S)
        dtype = torch.promote_types(hidden_SH.dtype, torch.float32)
        return nn.functional.linear(hidden_SH.to(dtype), self.score.weight.to(dtype))[:, 0]


def answer_scores(model: nn.Module, groups: Sequence[Answers], device: torch.device) -> Tensor:
    """The score of every answer, group by group ``[S]``; each prompt is computed once. Differentiable."""
    pad_id = int(model.pad_id)  # pyrefly: ignore - to torch an attribute may be a tensor
    row = build_group_row(
        [
            # The row leaves the last token out, as nothing follows it; here it is the one that counts.
            GroupTokens(prompt_ids=prompt, completion_ids=tuple((*a, 0) for a in answers))
            for prompt, answers in groups
        ]
    )
    ends = _ends((answer for _, answers in groups for answer in answers), pad_id)
    positions_S = row.predict_U[row.source_C[torch.tensor(ends)]]
    return model(row.to(device), positions_S.to(device))


def _ends(answers: Iterable[Ids], pad_id: int) -> list[int]:
    """Which scored token of the row is predicted from each answer's last token that is no padding.

    Scored token 0 of an answer is predicted from the prompt's end, token t from the answer's token t - 1.
    """
    ends, start = [], 0
    for answer in answers:
        last = max((t for t, token in enumerate(answer) if token != pad_id), default=-1)
        ends.append(start + last + 1)
        start += len(answer) + 1
    return ends


def load_scorer(path: Path, seed: int | None = None) -> ScoringModel:
    """The reward model in ``path``, float32; with a ``seed`` a causal model gets a new head.

    A new head is drawn from N(0, 1 / (H + 1)) by the seed alone (Stiennon 2020 appendix B.1). Raises
    SpecError for an unknown architecture, and for a head that is missing where there must be one.
    """
    config = json.loads((path / "config.json").read_text())
    decoder = _decoder_class(path, config).from_pretrained(
        path, dtype=torch.float32, local_files_only=True
    )
    prepare_model(decoder)
    width = int(decoder.config.hidden_size)
    weight = _read_head(path) if is_scorer(config) else None
    if weight is None:
        weight = _new_head(path, width, None if is_scorer(config) else seed)
    if weight.shape != (1, width):
        raise SpecError(
            f"{path}: {HEAD} has shape {list(weight.shape)}, expected [1, {width}]: a reward model"
            " has one label"
        )
    head = nn.Linear(width, 1, bias=False)
    with torch.no_grad():
        head.weight.copy_(weight)
    return ScoringModel(decoder, head, load_tokenizer(path).pad_id)


def _decoder_class(path: Path, config: dict[str, Any]) -> Any:
    family, names = config.get("model_type"), config.get("architectures") or [""]
    stem = str(names[0]).removesuffix(CAUSAL).removesuffix(SCORING)
    try:
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        getattr(module, stem + SCORING)
        return getattr(module, f"{stem}Model")
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"{path}/config.json: transformers has no {stem}{SCORING} for model_type {family!r};"
            " take a model that can be a sequence classifier, such as Qwen2, Qwen3 or Llama"
        ) from error


def _read_head(path: Path) -> Tensor | None:
    file = find_head(path)
    if file is None:
        return None
    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(HEAD).float()


def _new_head(path: Path, width: int, seed: int | None) -> Tensor:
    if seed is None:
        raise SpecError(no_head(path))
    noise = torch.Generator().manual_seed(derive_seed(seed, "reward-head", 0))
    return torch.randn(1, width, generator=noise) / math.sqrt(width + 1)

"""A model of transformers that gives one vector, or the numbers of its head, for each sequence.

Sequences are padded behind their end and masked, so that each has the numbers of a plain forward of itself alone, to the
rounding of sums of another shape. Weights are read as safetensors and nothing of a model's own code is run.

Axes: N sequences, T tokens, H hidden units, L labels, D numbers of a vector.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rollout.errors import EngineError
from rollout.models.pooled import Activation, PooledModel, Pooling

CPU = torch.device("cpu")
UNREAD = ("pooler.", "classifier.dropout")
"""Beginnings of names of weights that a vector does not need: a file may lack them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledInput:
    """One sequence: its tokens, and of an encoder's pair which text each belongs to (empty: the first)."""

    ids: tuple[int, ...]
    types: tuple[int, ...] = ()


class PooledModule:
    """The model of a folder, float32. Raises EngineError for weights that are not all there."""

    def __init__(self, folder: Path, facts: PooledModel, device: torch.device = CPU) -> None:
        self._facts = facts
        self._device = device
        self._module = _load(folder, facts).to(device)
        config = self._module.config
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self._pad: int | None = config.pad_token_id
        self._typed = "token_type_ids" in inspect.signature(self._module.forward).parameters

    def compute(self, inputs: Sequence[PooledInput]) -> Tensor:
        """Vectors before they are cut and normalised, [N, H], or the head's numbers, [N, L]; float32, on the CPU."""
        if self._facts.task == "score" and self._pad is None and not self._facts.looks_ahead:
            # transformers finds the last token of several rows by the padding token.
            parts = [self._forward([one]).logits for one in inputs]
            return torch.cat(parts).float().cpu()
        output = self._forward(inputs)
        if self._facts.task == "score":
            return output.logits.float().cpu()
        lengths_N = torch.tensor([len(one.ids) for one in inputs], device=self._device)
        return pool(output.last_hidden_state.float(), lengths_N, self._facts.pooling).cpu()

    def _forward(self, inputs: Sequence[PooledInput]) -> Any:
        longest = max(len(one.ids) for one in inputs)
        shape = (len(inputs), longest)
        ids_NT = torch.full(shape, self._pad or 0, dtype=torch.long)
        mask_NT = torch.zeros(shape, dtype=torch.long)
        types_NT = torch.zeros(shape, dtype=torch.long)
        for row, one in enumerate(inputs):
            ids_NT[row, : len(one.ids)] = torch.tensor(one.ids)
            mask_NT[row, : len(one.ids)] = 1
            types_NT[row, : len(one.types)] = torch.tensor(one.types, dtype=torch.long)
        given = {"input_ids": ids_NT, "attention_mask": mask_NT}
        if self._typed:
            given["token_type_ids"] = types_NT
        with torch.inference_mode():
            return self._module(**{name: one.to(self._device) for name, one in given.items()})


def pool(hidden_NTH: Tensor, lengths_N: Tensor, pooling: Pooling) -> Tensor:
    """One vector of each sequence's own positions, [N, H]."""
    if pooling == "cls":
        return hidden_NTH[:, 0]
    if pooling == "last":
        rows_N = torch.arange(len(lengths_N), device=lengths_N.device)
        return hidden_NTH[rows_N, lengths_N - 1]
    places_T = torch.arange(hidden_NTH.shape[1], device=lengths_N.device)
    own_NT = places_T[None] < lengths_N[:, None]
    # A sum with zeros in it would carry what is not finite behind a sequence's end into it.
    kept_NTH = torch.where(own_NT[..., None], hidden_NTH, 0.0)
    return kept_NTH.sum(dim=1) / lengths_N[:, None]


def finish_vectors(vectors_NH: Tensor, *, normalised: bool, dimensions: int | None) -> Tensor:
    """Vectors [N, D], cut to ``dimensions`` and then of length 1 where ``normalised``."""
    cut_ND = vectors_NH if dimensions is None else vectors_NH[:, :dimensions]
    return functional.normalize(cut_ND, dim=-1) if normalised else cut_ND


def activate(logits_NL: Tensor, activation: Activation) -> Tensor:
    """Numbers of a head as they are told."""
    if activation == "softmax":
        return torch.softmax(logits_NL, dim=-1)
    return torch.sigmoid(logits_NL) if activation == "sigmoid" else logits_NL


def _load(folder: Path, facts: PooledModel) -> Any:
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if facts.task == "score" else AutoModel
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        # SDPA leaves out what caps scores, and nothing says so.
        capped = getattr(config, "attn_logit_softcapping", None)
        module, told = kind.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            attn_implementation="eager" if capped else None,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EngineError(f"transformers cannot load {folder}: {error}") from error
    unread = () if facts.task == "score" else UNREAD
    missing = sorted(one for one in told["missing_keys"] if not one.startswith(unread))
    if missing:
        raise EngineError(
            f"{folder}: the weights lack {', '.join(missing[:5])}, which would be drawn at random:"
            " take a model that was saved whole"
        )
    return module.eval().requires_grad_(requires_grad=False)

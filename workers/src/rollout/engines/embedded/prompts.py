"""Prompts of a batch: their keys and values once per group, and what a generated token reads of them.

Prompts of one padded length are computed together. In a fixed shape that is ``together_of(length)`` at a time, with
empty ones in the places that are left, so that a prompt's numbers depend on its own length alone.

Axes: N rows of a product, B groups, G samples per group, P padded prompt length, H query heads, K key-value heads, D head size,
R = H / K, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch.nn import functional

from rollout.engines.embedded.model import VECTOR, CompactModel, attend

TOGETHER_TOKENS = 256
"""Rows of the products that compute prompts in a fixed shape; more where a prompt is longer itself."""


def together_of(length: int) -> int:
    """Prompts of ``length`` that are computed at a time in a fixed shape."""
    return max(1, TOGETHER_TOKENS // _whole_vectors(length))


def _whole_vectors(length: int) -> int:
    return -(-length // VECTOR) * VECTOR


class PromptKeys:
    """Prompts padded on the right to one ``length`` (causality hides the pads), and their caches."""

    def __init__(
        self, model: CompactModel, prompts: Sequence[Sequence[int]], length: int, *, fixed: bool
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._length = length
        self._fixed = fixed
        lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        padded = fixed or any(len(prompt) < length for prompt in prompts)
        self._bias = _padding_bias(lengths_B, length, model.dtype) if padded else None
        self._layers: list[torch.Tensor] = []

    @property
    def num_groups(self) -> int:
        """Groups of this length."""
        return len(self._prompts)

    def compute(self) -> torch.Tensor:
        """Fill the caches; float32 logits [B, V] of what follows each prompt."""
        size = together_of(self._length) if self._fixed else len(self._prompts)
        parts = [
            self._computed(self._prompts[i : i + size], size)
            for i in range(0, len(self._prompts), size)
        ]
        self._layers = [
            torch.cat(layers, dim=1) for layers in zip(*(p[1] for p in parts), strict=True)
        ]
        return torch.cat([logits_BV for logits_BV, _ in parts])

    def keep(self, groups: Sequence[int]) -> None:
        """Go on with these groups only."""
        if len(groups) < self.num_groups:
            places_B = torch.tensor(groups, device=self._model.device)
            self._layers = [kv.index_select(1, places_B) for kv in self._layers]
            self._prompts = [self._prompts[group] for group in groups]
            self._bias = None if self._bias is None else self._bias[places_B]

    def attend(
        self, index: int, q: torch.Tensor, group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [B * G, K, R, D] at the prompts: [B * G, H, D], and log-sum-exps [B * G, H]."""
        kv = self._layers[index]
        grouped = q.flatten(1, 2).unflatten(0, (-1, group_size)).transpose(1, 2)
        far, far_lse = attend(grouped, kv[0], kv[1], bias=self._bias, scale=self._model.scale)
        return far.transpose(1, 2).flatten(0, 1), far_lse.transpose(1, 2).flatten(0, 1)

    def side_by_side(self, index: int) -> torch.Tensor:
        """The caches of layer ``index`` without pads: [2, tokens of all prompts, K, D]."""
        kv = self._layers[index]
        parts = [kv[:, place, :, : len(prompt)] for place, prompt in enumerate(self._prompts)]
        return torch.cat(parts, dim=2).transpose(1, 2)

    def _computed(
        self, prompts: Sequence[Sequence[int]], places: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits [B, V] and caches [2, B, K, P, D] of every layer, computed in ``places`` places."""
        model, real = self._model, len(prompts)
        # Each prompt begins at a vector's bound of the products; attention later reads ``_length`` keys of it.
        length = _whole_vectors(self._length) if self._fixed else self._length
        ids_BP = _right_padded([*prompts, *[(0,)] * (places - real)], length)
        num_tokens = places * length
        spare = max(0, TOGETHER_TOKENS - num_tokens) if self._fixed else 0
        x_EN = model.embed(functional.pad(ids_BP.reshape(-1), (0, spare)))
        positions_N = functional.pad(torch.arange(length).repeat(places), (0, spare))
        rotation = model.rotation(positions_N)
        caches: list[torch.Tensor] = []
        for index in range(model.config.num_layers):
            q, kv = model.heads(index, x_EN, rotation)
            q, kv = q[:num_tokens], kv[:, :num_tokens]
            q = q.flatten(1, 2).unflatten(0, (places, length)).transpose(1, 2)
            kv = kv.unflatten(1, (places, length)).transpose(2, 3).contiguous()
            caches.append(kv[:, :real, :, : self._length])
            out, _ = attend(q, kv[0], kv[1], causal=True, scale=model.scale)
            out_NE = out.transpose(1, 2).flatten(0, 1).flatten(1)
            x_EN = model.finish(index, x_EN, functional.pad(out_NE, (0, 0, 0, spare)))
        lengths = [len(prompt) for prompt in prompts] + [1] * (places - real)
        last_B = torch.arange(places) * length + torch.tensor(lengths) - 1
        last_B = functional.pad(last_B, (0, -places % VECTOR if self._fixed else 0))
        last_B = last_B.to(model.device)
        return model.logits(x_EN.index_select(1, last_B))[:real], caches


def prompts_by_length(
    model: CompactModel, prompts: Sequence[Sequence[int]], *, fixed: bool
) -> list[PromptKeys]:
    """Prompts of one padded length together; outside a fixed shape all have one."""
    if not fixed:
        return [PromptKeys(model, prompts, max(map(len, prompts)), fixed=False)]
    return [
        PromptKeys(model, list(some), length, fixed=True)
        for length, some in groupby(prompts, key=lambda prompt: model.whole(len(prompt)))
    ]


def _right_padded(prompts: Sequence[Sequence[int]], length: int) -> torch.Tensor:
    return torch.tensor([(*prompt, *([0] * (length - len(prompt)))) for prompt in prompts])


def _padding_bias(lengths_B: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """[B, 1, 1, P]: -inf on padded prompt positions, else 0."""
    padded_BP = torch.arange(length, device=lengths_B.device) >= lengths_B[:, None]
    bias_BP = torch.zeros(padded_BP.shape, dtype=dtype, device=lengths_B.device).masked_fill_(
        padded_BP, float("-inf")
    )
    return bias_BP[:, None, None]

"""One batch of groups in flight: the prompt's keys and values once per group, the rest per sample.

A generated token attends to its group's prompt (all samples of the group in one call) and to its own
past; the two softmax pieces are merged by their log-sum-exps. Caches are allocated once, at full
length, and written in place.

Axes: S samples = B groups x G samples, P padded prompt length, H query heads, K key-value heads,
D head size, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rollout.engines.embedded.config import DecoderConfig
from rollout.engines.embedded.model import CompactModel, attend


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The shape of a batch beside its prompts.

    ``prompt_length`` is what prompts are padded to; 0 pads them to the longest, only if they differ.
    """

    group_size: int
    new_tokens_max: int
    prompt_length: int = 0


class DecodingBatch(Protocol):
    """Groups of equal size being decoded together."""

    def first(self) -> torch.Tensor:
        """Compute the prompts; float32 logits [S, V] of every sample's first token. Called once."""
        ...

    def step(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Feed one token per sample; float32 logits [S, V] of the next. At most T - 1 times."""
        ...

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        """Go on with these groups and samples only, group by group, as many samples in each."""
        ...


class Decoder(Protocol):
    """A model that opens batches."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, V."""
        ...

    @property
    def positions_max(self) -> int:
        """Longest prompt with completion."""
        ...

    @property
    def takes_ragged_prompts(self) -> bool:
        """Whether prompts of one batch may differ in length."""
        ...

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take weights by their transformers names. Raises EngineError."""
        ...

    def open(self, prompts: Sequence[Sequence[int]], size: BatchSize) -> DecodingBatch:
        """A batch of ``size.group_size`` samples per prompt."""
        ...


class CompactDecoder:
    """Decoder on the fused weights of ``CompactModel``."""

    takes_ragged_prompts = True

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        self.vocab_size = config.vocab_size
        self.positions_max = config.positions_max
        self._model = CompactModel(config, dtype)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take weights by their transformers names. Raises EngineError."""
        self._model.load(tensors)

    def open(self, prompts: Sequence[Sequence[int]], size: BatchSize) -> CompactBatch:
        """A batch of ``size.group_size`` samples per prompt."""
        return CompactBatch(self._model, prompts, size)


class CompactBatch:
    """The caches of one batch."""

    def __init__(
        self,
        model: CompactModel,
        prompts: Sequence[Sequence[int]],
        size: BatchSize,
    ) -> None:
        self._model = model
        self._lengths_B = torch.tensor([len(prompt) for prompt in prompts])
        length = size.prompt_length or int(self._lengths_B.max())
        self._ids_BP = _right_padded(prompts, length)
        self._group_size = size.group_size
        self._position_S = self._lengths_B.repeat_interleave(size.group_size)
        bias = _padding_bias(self._lengths_B, length, model.dtype)
        self._bias = bias if size.prompt_length or bool(bias.any()) else None
        own = (
            2,
            len(self._position_S),
            model.config.num_kv_heads,
            size.new_tokens_max - 1,
            model.config.head_size,
        )
        self._layers = range(model.config.num_layers)
        self._own = [torch.empty(own, dtype=model.dtype) for _ in self._layers]
        self._prompt: list[torch.Tensor] = []
        self._filled = 0

    def first(self) -> torch.Tensor:
        """Compute the prompts, padded on the right (causality hides the pads)."""
        num_groups, length = self._ids_BP.shape
        x_ES = self._model.embed(self._ids_BP.reshape(-1))
        rotation = self._model.rotation(torch.arange(length).repeat(num_groups))
        for index in self._layers:
            q, kv = self._model.heads(index, x_ES, rotation)
            q = q.flatten(1, 2).unflatten(0, (num_groups, length)).transpose(1, 2)
            kv = kv.unflatten(1, (num_groups, length)).transpose(2, 3).contiguous()
            self._prompt.append(kv)
            out, _ = attend(q, kv[0], kv[1], causal=True, scale=self._model.scale)
            x_ES = self._model.finish(index, x_ES, out.transpose(1, 2).flatten(0, 1).flatten(1))
        last_B = torch.arange(num_groups) * length + self._lengths_B - 1
        logits_BV = self._model.logits(x_ES.index_select(1, last_B))
        return logits_BV.repeat_interleave(self._group_size, dim=0)

    def step(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Feed one token per sample."""
        x_ES = self._model.embed(tokens_S)
        rotation = self._model.rotation(self._position_S)
        for index in self._layers:
            q, kv = self._model.heads(index, x_ES, rotation)
            self._own[index][:, :, :, self._filled] = kv
            x_ES = self._model.finish(index, x_ES, self._attend(index, q))
        self._filled += 1
        self._position_S += 1
        return self._model.logits(x_ES)

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        """Copy what goes on to the front of smaller caches."""
        if len(groups_B) < len(self._lengths_B):
            self._prompt = [kv.index_select(1, groups_B) for kv in self._prompt]
            self._lengths_B = self._lengths_B[groups_B]
            self._bias = None if self._bias is None else self._bias[groups_B]
        self._own = [kv.index_select(1, samples_S) for kv in self._own]
        self._position_S = self._position_S[samples_S]
        self._group_size = len(samples_S) // len(groups_B)

    def _attend(self, index: int, q: torch.Tensor) -> torch.Tensor:
        """[S, K, R, D] queries -> [S, H * D]."""
        scale = self._model.scale
        prompt = self._prompt[index]
        own = self._own[index][:, :, :, : self._filled + 1]
        grouped = q.flatten(1, 2).unflatten(0, (-1, self._group_size)).transpose(1, 2)
        far, far_lse = attend(grouped, prompt[0], prompt[1], bias=self._bias, scale=scale)
        near, near_lse = attend(q, own[0], own[1], scale=scale)
        far = far.transpose(1, 2).flatten(0, 1)
        far_lse = far_lse.transpose(1, 2).flatten(0, 1)
        weight = torch.sigmoid_(near_lse.flatten(1) - far_lse)[:, :, None].to(far.dtype)
        return torch.lerp(far, near.flatten(1, 2), weight).flatten(1)


def _right_padded(prompts: Sequence[Sequence[int]], length: int) -> torch.Tensor:
    return torch.tensor([(*prompt, *([0] * (length - len(prompt)))) for prompt in prompts])


def _padding_bias(lengths_B: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """[B, 1, 1, P]: -inf on padded prompt positions, else 0."""
    padded_BP = torch.arange(length) >= lengths_B[:, None]
    bias_BP = torch.zeros(padded_BP.shape, dtype=dtype).masked_fill_(padded_BP, float("-inf"))
    return bias_BP[:, None, None]

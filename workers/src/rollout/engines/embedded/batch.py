"""One batch of groups in flight: the prompt's keys and values once per group, the rest per sample.

A generated token attends to its group's prompt (all samples of the group in one call) and to its own
past; the two softmax pieces are merged by their log-sum-exps. Caches are allocated once, at full
length, and written in place.

In a fixed shape every product has one of a few numbers of rows, whatever is asked for, and attention reads whole
lengths (``CompactModel.whole``): neither the place of a sample nor what lies beside it enters its numbers.

Axes: S samples = B groups x G samples, N rows of a product (S and, in a fixed shape, empty ones), H query heads,
K key-value heads, R = H / K, D head size, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from rollout.engines.batching import fixed_rows
from rollout.engines.embedded.model import CompactModel, attend, merge
from rollout.engines.embedded.prompts import prompts_by_length


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The shape of a batch beside its prompts.

    ``widths``: a fixed shape, and the numbers of rows, ascending, that its products may have; the last holds all
    samples. Empty: whatever shape is fastest; prompts are padded to the longest, only if they differ.
    ``routes``: the experts of each token are kept (``ModuleBatch.routes``).
    """

    group_size: int
    new_tokens_max: int
    widths: tuple[int, ...] = ()
    routes: bool = False


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


@runtime_checkable
class RoutedBatch(Protocol):
    """A batch that knows the experts of its tokens."""

    def routes(self) -> torch.Tensor:
        """Ids [S, P + steps, L, K], bytes or int16 on the CPU, of all samples that the batch began with."""
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
        """A batch of ``size.group_size`` samples per prompt, in a fixed shape by rising length."""
        ...


class CompactBatch:
    """The caches of one batch."""

    def __init__(
        self, model: CompactModel, prompts: Sequence[Sequence[int]], size: BatchSize
    ) -> None:
        self._model = model
        self._widths = size.widths
        self._group_size = size.group_size
        self._prompts = prompts_by_length(model, prompts, fixed=bool(size.widths))
        lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        self._num_samples = len(prompts) * size.group_size
        empty_S = lengths_B.new_zeros(self._width() - self._num_samples)
        self._position_N = torch.cat((lengths_B.repeat_interleave(size.group_size), empty_S))
        self._filled = 0
        room = size.new_tokens_max - 1
        self._own_bias = _no_keys(model.whole(room), model) if size.widths else None
        own = (
            2,
            self._width(),
            model.config.num_kv_heads,
            model.whole(room) if size.widths else room,
            model.config.head_size,
        )
        fill = torch.zeros if size.widths else torch.empty  # what is masked must be finite
        self._own = [
            fill(own, dtype=model.dtype, device=model.device)
            for _ in range(model.config.num_layers)
        ]

    def first(self) -> torch.Tensor:
        """Compute the prompts."""
        logits_BV = torch.cat([prompts.compute() for prompts in self._prompts])
        return logits_BV.repeat_interleave(self._group_size, dim=0)

    def step(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Feed one token per sample."""
        return self.logits(self.hidden(tokens_S))

    def logits(self, x_EN: torch.Tensor) -> torch.Tensor:
        """float32 [S, V] from what ``hidden`` gave."""
        return self._model.logits(x_EN)[: self._num_samples]

    def hidden(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Feed one token per sample; what the last layer leaves, x_EN."""
        spare = len(self._position_N) - self._num_samples
        if spare:
            tokens_S = torch.cat((tokens_S, tokens_S.new_zeros(spare)))
        x_EN = self._model.embed(tokens_S)
        rotation = self._model.rotation(self._position_N)
        for index in range(self._model.config.num_layers):
            q, kv = self._model.heads(index, x_EN, rotation)
            self._own[index][:, :, :, self._filled] = kv
            x_EN = self._model.finish(index, x_EN, self._attend(index, q))
        self._filled += 1
        self._position_N += 1
        return x_EN

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        """Copy what goes on to the front of smaller caches."""
        self._keep_prompts(groups_B.tolist())
        self._num_samples = len(samples_S)
        self._group_size = len(samples_S) // len(groups_B)
        # Any row will do for an empty one.
        samples_S = samples_S.to(self._model.device)
        rows_N = torch.cat((samples_S, samples_S.new_zeros(self._width() - len(samples_S))))
        self._own = [kv.index_select(1, rows_N) for kv in self._own]
        self._position_N = self._position_N[rows_N]

    def pretend(self, num_tokens: int, noise: torch.Generator) -> None:
        """As if every sample had decoded ``num_tokens`` (at most T - 2) of the same numbers: for measuring."""
        for kv in self._own:
            new = kv[:, :, :, self._filled : num_tokens]
            new.copy_(torch.randn(new[:, :1].shape, generator=noise))
        if self._own_bias is not None:
            self._own_bias[..., :num_tokens] = 0
        self._position_N += num_tokens - self._filled
        self._filled = num_tokens

    def _width(self) -> int:
        """Rows of the products for the samples that there are."""
        return fixed_rows(self._num_samples, self._widths)

    def _keep_prompts(self, groups: Sequence[int]) -> None:
        start, kept = 0, []
        for prompts in self._prompts:
            end = start + prompts.num_groups
            mine = [group - start for group in groups if start <= group < end]
            if mine:
                prompts.keep(mine)
                kept.append(prompts)
            start = end
        self._prompts = kept

    def _attend(self, index: int, q: torch.Tensor) -> torch.Tensor:
        """[N, K, R, D] queries -> [N, H * D]."""
        own, bias = self._own_keys(index)
        near, near_lse = attend(q, own[0], own[1], bias=bias, scale=self._model.scale)
        near, near_lse = near.flatten(1, 2), near_lse.flatten(1)
        far, far_lse = self._attend_prompts(index, q)
        return merge(near, near_lse, far, far_lse).flatten(1)

    def _attend_prompts(self, index: int, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Every row at its group's prompt: [N, H, D] and [N, H]; an empty row has none, of no weight.

        Whole batches go on from here: the last numbers of an odd count are computed without vectors, and so
        otherwise.
        """
        start, found = 0, []
        for prompts in self._prompts:
            end = start + prompts.num_groups * self._group_size
            found.append(prompts.attend(index, q[start:end], self._group_size))
            start = end
        if start < len(q):
            empty = q[start:].flatten(1, 2)
            never = torch.full(empty.shape[:2], float("-inf"), device=empty.device)
            found.append((torch.zeros_like(empty), never))
        if len(found) == 1:
            return found[0]
        return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])

    def _own_keys(self, index: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Keys and values up to this token; in a fixed shape up to a whole length, the rest masked."""
        length = self._filled + 1
        if self._own_bias is None:
            return self._own[index][:, :, :, :length], None
        self._own_bias[..., self._filled] = 0
        whole = self._model.whole(length)
        return self._own[index][:, :, :, :whole], self._own_bias[..., :whole]


def _no_keys(length: int, model: CompactModel) -> torch.Tensor:
    """[1, 1, 1, T]: no position may be read yet."""
    shape = (1, 1, 1, length)
    return torch.full(shape, float("-inf"), dtype=model.dtype, device=model.device)

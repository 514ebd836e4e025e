"""One batch of groups in flight whose steps are captured: tokens are drawn where the logits are.

The host names no size that changes from token to token: it starts READ_EVERY steps, reads what they drew, and sees who
has ended. Samples that end leave at the next such look. Rows beyond the samples are computed and never read.

Axes: S samples = B groups x G samples, N rows, T new tokens, V vocabulary, E hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch

from rollout.engines.embedded.batch import BatchSize
from rollout.engines.embedded.model import CompactModel
from rollout.engines.embedded.prompts import prompts_by_length
from rollout.engines.embedded.sampling import Sampler
from rollout.engines.embedded.steps.capture import Capture
from rollout.engines.embedded.steps.slots import (
    READ_EVERY,
    ROWS,
    STRETCH,
    Room,
    Shape,
    Slots,
    room_for,
    spans_of,
)
from rollout.engines.embedded.steps.step import draw, feed
from rollout.errors import EngineError


class StaticBatch:
    """A ``DecodingBatch`` that can also draw. One at a time of a room: opening one ends the last."""

    def __init__(
        self,
        model: CompactModel,
        room: Room,
        capture: Capture,
        prompts: Sequence[Sequence[int]],
        size: BatchSize,
    ) -> None:
        self._model, self._room, self._capture = model, room, capture
        room.holder = self
        self._widths, self._group_size = size.widths, size.group_size
        self._prompts = prompts_by_length(model, prompts, fixed=bool(size.widths))
        lengths = [len(prompt) for prompt in prompts]
        self._spans = spans_of(lengths)
        self._num_samples = len(prompts) * size.group_size
        self._drawn = self._filled = 0
        self._sampler: Sampler | None = None
        self._num_places = room_for(size.new_tokens_max - 1)
        shape = self._shape()
        room.fit(shape, sum(lengths))
        self._slots = room.slots(shape)
        self._slots.begin(lengths, size.group_size)
        self._slots.bind(self._spans, size.group_size)

    def first(self) -> torch.Tensor:
        """Compute the prompts; float32 logits [S, V]."""
        logits_BV = torch.cat([prompts.compute() for prompts in self._prompts])
        for index, kept in enumerate(self._room.prompts):
            found = torch.cat([prompts.side_by_side(index) for prompts in self._prompts], dim=1)
            kept[:, : found.shape[1]] = found
        self._prompts = []
        return logits_BV.repeat_interleave(self._group_size, dim=0)

    def step(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Feed one token per sample; float32 logits [S, V] of the next."""
        return self.logits(self.hidden(tokens_S))

    def hidden(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Feed one token per sample; what the last layer leaves, x_EN."""
        self._slots.tokens_N[: self._num_samples] = tokens_S.to(self._model.device)
        x_EN = feed(self._model, self._slots, self._room.prompts, self._begin())
        self._filled += 1
        return x_EN

    def logits(self, x_EN: torch.Tensor) -> torch.Tensor:
        """float32 [S, V] from what ``hidden`` gave."""
        return self._model.logits(x_EN)[: self._num_samples]

    def draw_with(self, sampler: Sampler, noise_TS: torch.Tensor) -> None:
        """Draw with this noise from now on, the first token with its first row."""
        self._sampler = sampler
        self._slots.noise_TN[: len(noise_TS), : self._num_samples] = noise_TS.to(self._model.device)

    def draw(self, tokens_max: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The next tokens and logprobs, [T, S] on the CPU: READ_EVERY rows or ``tokens_max``."""
        if self._room.holder is not self or self._sampler is None:
            raise EngineError("this batch was ended by another, or has nothing to draw with")
        rows = [t % READ_EVERY for t in range(self._drawn, self._drawn + tokens_max)][:READ_EVERY]
        gpu = self._model.device.type == "cuda"
        with torch.cuda.device(self._model.device) if gpu else nullcontext():
            for _ in rows:
                self._draw_one(self._sampler)
                self._drawn += 1
        slots, samples = self._slots, slice(self._num_samples)
        return slots.ring_tokens.cpu()[rows, samples], slots.ring_logprobs.cpu()[rows, samples]

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        """Copy what goes on to the front of a smaller shape."""
        self._spans = [self._spans[group] for group in groups_B.tolist()]
        self._num_samples = len(samples_S)
        self._group_size = len(samples_S) // len(groups_B)
        last, self._slots = self._slots, self._room.slots(self._shape())
        spare = self._slots.shape.rows - len(samples_S)
        rows_N = torch.cat((samples_S, samples_S.new_zeros(spare))).to(self._model.device)
        self._slots.take(last, rows_N, self._filled)
        self._slots.bind(self._spans, self._group_size)

    def pretend(self, num_tokens: int, noise: torch.Generator) -> None:
        """As if every sample had decoded ``num_tokens`` (at most T - 2) of the same numbers: for measuring."""
        for kv in self._slots.layers:
            new = kv[:, :, self._filled : num_tokens]
            new.copy_(torch.randn(new[:, :1].shape, generator=noise))
        self._filled = num_tokens
        self._slots.filled_1.fill_(num_tokens)

    def _draw_one(self, sampler: Sampler) -> None:
        if not self._drawn:
            draw(self._slots, sampler, self.first())
            return
        begin = self._begin()
        step = partial(_feed_and_draw, self._model, self._slots, self._room.prompts, sampler, begin)
        self._slots.run((begin, sampler.kind), step, self._capture)
        self._filled += 1

    def _begin(self) -> int:
        return self._filled // STRETCH * STRETCH

    def _shape(self) -> Shape:
        fits = (width for width in self._widths if width >= self._num_samples)
        whole = -(-self._num_samples // ROWS) * ROWS
        return Shape(rows=next(fits, whole), room=self._num_places)


def _feed_and_draw(
    model: CompactModel, slots: Slots, prompts: list[torch.Tensor], sampler: Sampler, begin: int
) -> None:
    draw(slots, sampler, model.logits(feed(model, slots, prompts, begin)))

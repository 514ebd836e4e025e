"""Whether a group's numbers depend on the slot of a fixed-shape batch that it lies in: measured.

In a batch of fixed shape every kernel does the same arithmetic for the same position, whatever the
other positions hold; so neighbours cannot matter. Where a group *lies* could: a kernel may treat the
rest of a vector or a block differently. This probe puts one group into every slot, with the shape,
build and threads at hand, and compares all logits and distributions bit for bit. Weights are made
from a fixed seed, so that every process of a build comes to the same answer.

Axes: B slots, G samples per slot, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from rollout.engines.embedded.batch import BatchSize, Decoder
from rollout.engines.embedded.sampling import Sampler
from rollout.types import SamplingParams

NEW_TOKENS_MAX = 256
"""Longer batches are not probed: their groups run alone, which costs them little."""


class SlotProbe:
    """Answers per batch shape, remembered. ``build`` makes a decoder for the time of one probe."""

    def __init__(self, build: Callable[[], Decoder]) -> None:
        self._build = build
        self._shapes: dict[str, torch.Size] = {}
        self._answers: dict[tuple[int, BatchSize], bool] = {}

    def expect(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Probe with weights of the names and shapes of ``tensors``."""
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}

    def slots_agree(self, num_slots: int, size: BatchSize) -> bool:
        """Whether a group's numbers are bitwise the same in all ``num_slots`` slots."""
        if size.new_tokens_max > NEW_TOKENS_MAX:
            return False
        key = (num_slots, size)
        if key not in self._answers:
            decoder = self._build()
            decoder.load(_draw_weights(self._shapes))
            self._answers[key] = all(_compare(decoder, num_slots, size))
        return self._answers[key]


def _compare(decoder: Decoder, num_slots: int, size: BatchSize) -> Iterator[bool]:
    noise = torch.Generator().manual_seed(0)

    def draw(count: int) -> torch.Tensor:
        return torch.randint(decoder.vocab_size, (count,), generator=noise)

    prompt = draw(max(1, size.prompt_length - 1)).tolist()
    batch = decoder.open([prompt] * num_slots, size)
    sampler = Sampler(SamplingParams(max_new_tokens=1, temperature=0.7), decoder.vocab_size)
    logits_SV = batch.first()
    for t in range(size.new_tokens_max):
        yield _slots_equal(logits_SV, num_slots)
        for part_SV in sampler.distribution(logits_SV, t):
            yield _slots_equal(part_SV, num_slots)
        if t + 1 < size.new_tokens_max:
            logits_SV = batch.step(draw(size.group_size).repeat(num_slots))


def _slots_equal(values_SV: torch.Tensor, num_slots: int) -> bool:
    slots_BGV = values_SV.unflatten(0, (num_slots, -1))
    return bool((slots_BGV == slots_BGV[:1]).all())


def _draw_weights(shapes: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Large enough for rounding to show everywhere, small enough to stay finite."""
    noise = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shapes[name], generator=noise) * 2 / shapes[name][-1] ** 0.5
        for name in sorted(shapes)
    }

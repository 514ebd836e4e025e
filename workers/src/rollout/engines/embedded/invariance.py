"""In which shapes a group's numbers do not depend on where it lies and what lies beside it: measured.

In a product of a fixed number of rows every kernel does the same arithmetic for the same row, whatever the others
hold; so neighbours cannot matter. Where a row *lies*, and of how many, could: a kernel may treat the rest of a
vector or a block differently. This probe puts one group into every place of batches of several widths, with the
build and threads at hand, and compares all numbers bit for bit with those of the first place of the widest. It
computes one layer (the others have the same shapes), prompts and one token, and one more token for every length
at which attention does other arithmetic. Weights are made from a fixed seed, so that every process of a build
comes to the same answer.

Axes: N rows, G samples per group, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from rollout.engines.batching import NEW_TOKENS_MAX, candidate_widths
from rollout.engines.embedded.batch import BatchSize
from rollout.engines.embedded.decoder import CompactDecoder
from rollout.engines.embedded.model import VECTOR
from rollout.engines.embedded.sampling import Sampler
from rollout.types import SamplingParams


class SlotProbe:
    """Answers per shape, remembered. ``build`` makes a decoder of one layer for the time of one probe."""

    def __init__(self, build: Callable[[], CompactDecoder], groups_max: int) -> None:
        self._build = build
        self._groups_max = groups_max
        self._shapes: dict[str, torch.Size] = {}
        self._decoder: CompactDecoder | None = None
        self._of_prompts: dict[tuple[int, int], frozenset[int]] = {}
        self._of_lengths: dict[tuple[int, int], bool] = {}

    def expect(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Probe with weights of the names and shapes of ``tensors``, of one layer."""
        self._shapes = {
            name: tensor.shape
            for name, tensor in tensors.items()
            if not name.startswith("model.layers.") or name.startswith("model.layers.0.")
        }

    def widths(self, group_size: int, new_tokens_max: int, prompt_length: int) -> tuple[int, ...]:
        """The widths, ascending, that give a group of this shape the same numbers, whatever its place.

        The last holds ``groups_max`` groups; () where even that has places that differ: such a group is alone.
        """
        if new_tokens_max > NEW_TOKENS_MAX:
            return ()
        length = -(-prompt_length // VECTOR) * VECTOR
        # One more: the last tokens read a whole length that may begin in the block before.
        blocks = (-(-new_tokens_max // VECTOR) + 1) * VECTOR
        found = self._prompts(group_size, length)
        return tuple(sorted(found)) if found and self._lengths(group_size, blocks) else ()

    def release(self) -> None:
        """Free the decoder that answers were measured with, until the next question."""
        self._decoder = None

    def _prompts(self, group_size: int, length: int) -> frozenset[int]:
        """Widths that agree for prompts up to ``length``, above the multiple of VECTOR before."""
        key = (group_size, length)
        if key not in self._of_prompts:
            size = BatchSize(group_size=group_size, new_tokens_max=2)
            widths = candidate_widths(group_size, self._groups_max)
            # Padded lengths are apart by VECTOR, and so at most two belong to these prompts.
            found = self._agreeing(size, length, widths)
            self._of_prompts[key] = found & self._agreeing(size, length - VECTOR + 1, widths)
        return self._of_prompts[key]

    def _lengths(self, group_size: int, new_tokens_max: int) -> bool:
        """Whether attention to own tokens agrees at all lengths; it knows no width."""
        key = (group_size, new_tokens_max)
        if key not in self._of_lengths:
            size = BatchSize(group_size=group_size, new_tokens_max=new_tokens_max)
            full = candidate_widths(group_size, self._groups_max)[-1:]
            self._of_lengths[key] = bool(self._agreeing(size, 1, full))
        return self._of_lengths[key]

    def _agreeing(
        self, size: BatchSize, prompt_length: int, widths: tuple[int, ...]
    ) -> frozenset[int]:
        """Those of ``widths`` that agree with the first place of the last, if the last itself does."""
        decoder = self._loaded()
        with torch.inference_mode():
            last = _numbers(decoder, widths[-1], size, prompt_length)
            right = [groups_BGX[0].clone() for groups_BGX in last]
            agreeing = frozenset(
                width
                for width in widths
                if _all_equal(_numbers(decoder, width, size, prompt_length), right)
            )
        return agreeing if widths[-1] in agreeing else frozenset()

    def _loaded(self) -> CompactDecoder:
        if self._decoder is None:
            self._decoder = self._build()
            self._decoder.load(_draw_weights(self._shapes))
        return self._decoder


def _all_equal(found: Iterator[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(
        bool((groups_BGX == one_GX).all()) for groups_BGX, one_GX in zip(found, right, strict=True)
    )


def _numbers(
    decoder: CompactDecoder, width: int, size: BatchSize, prompt_length: int
) -> Iterator[torch.Tensor]:
    """What one group comes to in every place of a batch of ``width`` rows, [B, G, X] each."""
    noise = torch.Generator().manual_seed(0)

    def draw(count: int) -> torch.Tensor:
        return torch.randint(decoder.vocab_size, (count,), generator=noise)

    # As long as it is padded to: what is masked shows no rounding.
    prompt = draw(decoder.padded(prompt_length)).tolist()
    groups = width // size.group_size
    batch = decoder.open([prompt] * groups, replace(size, widths=(width,)))
    sampler = Sampler(SamplingParams(max_new_tokens=1, temperature=0.7), decoder.vocab_size)
    logits_SV = batch.first()
    yield logits_SV.unflatten(0, (groups, -1)).clone()
    for past in range(0, size.new_tokens_max - 1, VECTOR):
        batch.pretend(past, noise)
        tokens_S = draw(size.group_size).repeat(groups)
        hidden_EN = batch.hidden(tokens_S)
        yield hidden_EN.t()[: len(tokens_S)].unflatten(0, (groups, -1))
        if not past:
            logits_SV = batch.logits(hidden_EN)
            yield logits_SV.unflatten(0, (groups, -1)).clone()
            for part_SV in sampler.distribution(logits_SV):
                yield part_SV.unflatten(0, (groups, -1))


def _draw_weights(shapes: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Large enough for rounding to show everywhere, small enough to stay finite."""
    noise = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shapes[name], generator=noise) * 2 / shapes[name][-1] ** 0.5
        for name in sorted(shapes)
    }

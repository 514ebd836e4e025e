"""A step's sampled completions as tensors of micro-batches: rows, masks, values by token or by sample.

Axes: C scored tokens of a micro-batch, completion after completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby

import torch
from msgspec import UnsetType
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.learner.config.sampled import SampledSettings
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    PackedRow,
    build_group_row,
    token_logprobs,
)
from rollout.learner.objectives.packing import Chunk
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update
from rollout.types import Trajectory, TrajectoryGroup

Sample = tuple[int, int]
"""Position of a group in the batch, and of a sample in the group."""


class Completions:
    """The groups of one step on a device; rows are built once.

    ``dtype`` is of what was recorded, as losses see it. Samples of a group share their prompt where it is
    the same one: an environment may give each its own.
    """

    def __init__(
        self,
        groups: Sequence[TrajectoryGroup],
        device: torch.device,
        settings: SampledSettings,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.groups = groups
        self.device = device
        self._width = settings.width
        self._end_bar = settings.end_bar
        self._dtype = dtype
        self._rows: dict[MicroBatch, PackedRow] = {}

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths, for the plan."""
        return [_shape(group) for group in self.groups]

    def denominators(self, update: Update) -> Denominators:
        """Tokens and sequences of the mini-batch that count in the loss."""
        masks = [sum(t.loss_mask) for chunk in update.chunks() for t in self._of(chunk)]
        return Denominators(
            num_tokens=sum(masks),
            num_sequences=sum(tokens > 0 for tokens in masks),
            width=self._width,
        )

    def trajectory(self, sample: Sample) -> Trajectory:
        """One sample."""
        return self.groups[sample[0]].trajectories[sample[1]]

    def row(self, micro: MicroBatch) -> PackedRow:
        """The micro-batch as one row, with the policy's routes where it is a mixture of experts."""
        if micro not in self._rows:
            self._rows[micro] = self._build(micro, ())
        return self._rows[micro]

    def longer_row(self, micro: MicroBatch) -> PackedRow:
        """The same with one more token to score after each completion: its end has a state of its own."""
        return self._build(micro, (0,))

    def per_token(self, micro: MicroBatch, read: Callable[[Trajectory], Iterable[float]]) -> Tensor:
        """What ``read`` gives for each token, ``[C]``."""
        values = [v for s in samples_of(micro) for v in read(self.trajectory(s))]
        return torch.tensor(values, dtype=self._dtype, device=self.device)

    def per_sample(self, micro: MicroBatch, read: Callable[[Sample], float]) -> Tensor:
        """What ``read`` gives for each sample, at all of its tokens, ``[C]``."""
        values = [read(s) for s in samples_of(micro) for _ in self.trajectory(s).token_ids]
        return torch.tensor(values, dtype=self._dtype, device=self.device)

    def masks(self, micro: MicroBatch) -> Tensor:
        """1 where a token counts in the loss, ``[C]``."""
        return self.per_token(micro, lambda t: t.loss_mask)

    def actor_logprobs(self, micro: MicroBatch) -> Tensor:
        """What the actors sampled each token with, ``[C]``."""
        return self.per_token(micro, lambda t: t.actor_logprobs)

    @torch.no_grad()
    def score(
        self,
        model: nn.Module,
        passes: Sequence[Sequence[MicroBatch]],
        settings: SampledSettings,
        *,
        routed: bool = True,
    ) -> dict[Sample, Tensor]:
        """A model's logprobs of this rank's samples, ``[tokens]`` each.

        One mini-batch is cut the same in every epoch; of several, a rank meets others each time. Not ``routed``: it is
        another model than the policy, which takes its own experts.
        """
        found: dict[Sample, Tensor] = {}
        for micro in chain.from_iterable(passes if settings.mini_batches > 1 else passes[:1]):
            row = self.row(micro) if routed else self.row(micro).unrouted()
            stats = token_logprobs(model, row, temperature=settings.temperature)
            found.update(zip(samples_of(micro), stats.logprobs_C.split(row.lengths), strict=True))
        return found

    def stored(self, micro: MicroBatch, store: Mapping[Sample, Tensor]) -> Tensor:
        """Tensors kept by sample, side by side, ``[C]``."""
        parts = [store[sample] for sample in samples_of(micro)]
        return torch.cat(parts).to(dtype=self._dtype, device=self.device)

    def sequences(self, row: PackedRow) -> Tensor:
        """Which completion of the row each token belongs to, ``[C]``."""
        lengths = torch.tensor(row.lengths, device=self.device)
        return torch.arange(len(row.lengths), device=self.device).repeat_interleave(
            lengths, output_size=int(row.targets_C.shape[0])
        )

    def _of(self, chunk: Chunk) -> list[Trajectory]:
        return [self.trajectory((chunk.group, sample)) for sample in chunk.samples]

    def _build(self, micro: MicroBatch, more: tuple[int, ...]) -> PackedRow:
        groups = [
            _tokens_of(list(same), more)
            for chunk in micro.chunks
            for _, same in groupby(self._of(chunk), key=_prompt_of)
        ]
        row = build_group_row(groups)
        if (
            self._end_bar is not None and not more
        ):  # a longer row is for a critic, which has no logits
            bar, chosen = self._end_bar, [self.trajectory(s) for s in samples_of(micro)]
            at_C = [b for t in chosen for b in _barred(t.loss_mask, bar.num_tokens)]
            row = row.barring(bar.token_ids, at_C)
        return row.to(self.device)


def _shape(group: TrajectoryGroup) -> GroupShape:
    """A prompt that not all samples share counts as a part of each completion."""
    trajectories = group.trajectories
    prompt = _prompt_of(trajectories[0])
    lengths = tuple(len(t.token_ids) for t in trajectories)
    if all(_prompt_of(t) == prompt for t in trajectories):
        return GroupShape(prompt_tokens=len(prompt[0]), completion_tokens=lengths)
    whole = tuple(len(t.prompt_ids) + n for t, n in zip(trajectories, lengths, strict=True))
    return GroupShape(prompt_tokens=0, completion_tokens=whole)


def _prompt_of(trajectory: Trajectory) -> tuple[tuple[int, ...], bytes]:
    """What samples share that are computed behind one prompt: its tokens, and the experts that computed them."""
    routes = trajectory.routes
    own = b"" if isinstance(routes, UnsetType) else routes.part(0, len(trajectory.prompt_ids))
    return trajectory.prompt_ids, own


def _tokens_of(same: Sequence[Trajectory], more: tuple[int, ...]) -> GroupTokens:
    """Samples of one prompt, with ``more`` behind each: then without routes, which are of the samples as they are."""
    routes = tuple(t.routes for t in same if not isinstance(t.routes, UnsetType))
    return GroupTokens(
        prompt_ids=same[0].prompt_ids,
        completion_ids=tuple((*t.token_ids, *more) for t in same),
        routes=() if more else routes,
    )


def _barred(loss_mask: Sequence[int], num_tokens: int) -> Iterator[bool]:
    """Whether each token is among the first of a reply; a reply begins behind what was not sampled."""
    place = 0
    for sampled in loss_mask:
        yield bool(sampled) and place < num_tokens
        place = place + 1 if sampled else 0


def samples_of(micro: MicroBatch) -> list[Sample]:
    """The samples of a micro-batch, in its order."""
    return [(chunk.group, sample) for chunk in micro.chunks for sample in chunk.samples]

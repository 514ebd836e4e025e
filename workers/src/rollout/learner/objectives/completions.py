"""A step's sampled completions as tensors of micro-batches: rows, masks, values by token or by sample.

A sample is one episode: it has one reward, is one member of its group's baseline, and counts once wherever samples are
counted. Its rows, of which nearly all have one, are sequences of their own in a forward pass, and share its advantage;
each is a completion here. Where no sample has several, places of rows and of samples are the same.

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
from rollout.types import Branch, Trajectory, TrajectoryGroup

Sample = tuple[int, int]
"""Position of a group in the batch, and of a sample in the group."""
RowPlace = tuple[int, int]
"""Position of a group in the batch, and of a row among those of all its samples: sample by sample, as they began."""
TokenRow = Trajectory | Branch
"""What has tokens: a trajectory is its own first row."""


class Completions:
    """The groups of one step on a device; rows are built once.

    ``dtype`` is of what was recorded, as losses see it. Rows of a group share their prompt where it is
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
        self._found: dict[RowPlace, TokenRow] = {}
        self._owners: dict[RowPlace, Sample] = {}
        for place, sample, row in rows_in(groups):
            self._found[place], self._owners[place] = row, sample
        self._have_branches = have_branches(groups)

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths, for the plan."""
        rows: list[list[TokenRow]] = [[] for _ in self.groups]
        for place, row in self._found.items():
            rows[place[0]].append(row)
        return [_shape(of) for of in rows]

    def denominators(self, update: Update) -> Denominators:
        """Tokens and samples of the mini-batch that count in the loss: a sample of several rows is one."""
        masks: dict[Sample, int] = {}
        for chunk in update.chunks():
            for place in _places_in(chunk):
                own = sum(self._found[place].loss_mask)
                masks[self._owners[place]] = masks.get(self._owners[place], 0) + own
        return Denominators(
            num_tokens=sum(masks.values()),
            num_sequences=sum(tokens > 0 for tokens in masks.values()),
            width=self._width,
        )

    def trajectory(self, sample: Sample) -> Trajectory:
        """One sample."""
        return self.groups[sample[0]].trajectories[sample[1]]

    def tokens(self, place: RowPlace) -> TokenRow:
        """One row."""
        return self._found[place]

    def owner(self, place: RowPlace) -> Sample:
        """Whose row it is."""
        return self._owners[place]

    def sampled(self, micro: MicroBatch) -> Tensor | None:
        """At each token the sampled ones of its sample, all rows together, ``[C]``; None where no sample has several."""
        if not self._have_branches:
            return None
        return self.per_sample(micro, self._num_sampled)

    def row(self, micro: MicroBatch) -> PackedRow:
        """The micro-batch as one row, with the policy's routes where it is a mixture of experts."""
        if micro not in self._rows:
            self._rows[micro] = self._build(micro, ())
        return self._rows[micro]

    def longer_row(self, micro: MicroBatch) -> PackedRow:
        """The same with one more token to score after each completion: its end has a state of its own."""
        return self._build(micro, (0,))

    def per_token(self, micro: MicroBatch, read: Callable[[TokenRow], Iterable[float]]) -> Tensor:
        """What ``read`` gives for each token, ``[C]``."""
        values = [v for place in places_of(micro) for v in read(self._found[place])]
        return torch.tensor(values, dtype=self._dtype, device=self.device)

    def per_sample(self, micro: MicroBatch, read: Callable[[Sample], float]) -> Tensor:
        """What ``read`` gives for each sample, at all of its tokens, ``[C]``."""
        values = [
            value
            for place in places_of(micro)
            for value in [read(self._owners[place])] * len(self._found[place].token_ids)
        ]
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
    ) -> dict[RowPlace, Tensor]:
        """A model's logprobs of this rank's rows, ``[tokens]`` each.

        One mini-batch is cut the same in every epoch; of several, a rank meets others each time. Not ``routed``: it is
        another model than the policy, which takes its own experts.
        """
        found: dict[RowPlace, Tensor] = {}
        for micro in chain.from_iterable(passes if settings.mini_batches > 1 else passes[:1]):
            row = self.row(micro) if routed else self.row(micro).unrouted()
            stats = token_logprobs(model, row, temperature=settings.temperature)
            found.update(zip(places_of(micro), stats.logprobs_C.split(row.lengths), strict=True))
        return found

    def stored(self, micro: MicroBatch, store: Mapping[RowPlace, Tensor]) -> Tensor:
        """Tensors kept by row, side by side, ``[C]``."""
        parts = [store[place] for place in places_of(micro)]
        return torch.cat(parts).to(dtype=self._dtype, device=self.device)

    def sequences(self, row: PackedRow) -> Tensor:
        """Which completion of the row each token belongs to, ``[C]``."""
        lengths = torch.tensor(row.lengths, device=self.device)
        return torch.arange(len(row.lengths), device=self.device).repeat_interleave(
            lengths, output_size=int(row.targets_C.shape[0])
        )

    def _of(self, chunk: Chunk) -> list[TokenRow]:
        return [self._found[place] for place in _places_in(chunk)]

    def _num_sampled(self, sample: Sample) -> float:
        return float(self.trajectory(sample).num_sampled)

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
            bar, chosen = self._end_bar, [self._found[place] for place in places_of(micro)]
            at_C = [b for t in chosen for b in _barred(t.loss_mask, bar.num_tokens)]
            row = row.barring(bar.token_ids, at_C)
        return row.to(self.device)


def _shape(rows: Sequence[TokenRow]) -> GroupShape:
    """A prompt that not all rows share counts as a part of each completion."""
    prompt = _prompt_of(rows[0])
    lengths = tuple(len(row.token_ids) for row in rows)
    if all(_prompt_of(row) == prompt for row in rows):
        return GroupShape(prompt_tokens=len(prompt[0]), completion_tokens=lengths)
    whole = tuple(len(row.prompt_ids) + n for row, n in zip(rows, lengths, strict=True))
    return GroupShape(prompt_tokens=0, completion_tokens=whole)


def _prompt_of(row: TokenRow) -> tuple[tuple[int, ...], bytes]:
    """What rows share that are computed behind one prompt: its tokens, and the experts that computed them."""
    routes = row.routes
    own = b"" if isinstance(routes, UnsetType) else routes.part(0, len(row.prompt_ids))
    return row.prompt_ids, own


def _tokens_of(same: Sequence[TokenRow], more: tuple[int, ...]) -> GroupTokens:
    """Rows of one prompt, with ``more`` behind each: then without routes, which are of the rows as they are."""
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


def places_of(micro: MicroBatch) -> list[RowPlace]:
    """The rows of a micro-batch, in its order."""
    return [place for chunk in micro.chunks for place in _places_in(chunk)]


def _places_in(chunk: Chunk) -> list[RowPlace]:
    return [(chunk.group, place) for place in chunk.samples]


def samples_in(groups: Sequence[TrajectoryGroup]) -> Iterator[tuple[Sample, Trajectory]]:
    """All samples with their place, in the batch's order."""
    for position, group in enumerate(groups):
        for sample, trajectory in enumerate(group.trajectories):
            yield (position, sample), trajectory


def rows_in(groups: Sequence[TrajectoryGroup]) -> Iterator[tuple[RowPlace, Sample, TokenRow]]:
    """All rows with their place and whose they are, in the batch's order."""
    for position, group in enumerate(groups):
        for place, (sample, row) in enumerate(_rows_of(group)):
            yield (position, place), (position, sample), row


def have_branches(groups: Sequence[TrajectoryGroup]) -> bool:
    """Whether some sample has several rows."""
    return any(len(trajectory.rows) > 1 for _, trajectory in samples_in(groups))


def _rows_of(group: TrajectoryGroup) -> Iterator[tuple[int, TokenRow]]:
    for sample, trajectory in enumerate(group.trajectories):
        for row in trajectory.rows:
            yield sample, row

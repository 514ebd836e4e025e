"""A step of reinforcement learning: groups of sampled completions under the GRPO loss.

Axes as in ``rollout.algorithms``: C scored tokens of a micro-batch, P groups, G samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.advantages import GroupAdvantages, group_advantages
from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.grpo import PolicyTokens, grpo_loss
from rollout.learner.forward import GroupTokens, PackedRow, build_group_row, token_logprobs
from rollout.learner.metrics import describe_groups
from rollout.learner.plan import GroupShape, MicroBatch, Update
from rollout.learner.settings import PolicySettings
from rollout.learner.work import MicroLoss, TokenView
from rollout.packing import Chunk
from rollout.types import Trajectory, TrajectoryGroup

Sample = tuple[int, int]

SILENT_SHARE_MIN = 0.25
"""Share of tokens without a gradient from which a forward of their own saves more than it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and how this rank computes. ``skips_silent``: groups without signal need no backward."""

    device: torch.device
    skips_silent: bool = True


class PolicyWork:
    """The groups of one step; keeps old and reference logprobs between updates.

    ``advantages`` are by group and sample.
    """

    def __init__(
        self,
        groups: Sequence[TrajectoryGroup],
        settings: PolicySettings,
        place: Place,
        reference: nn.Module | None,
    ) -> None:
        self._groups = groups
        self._settings = settings
        self._place = place
        self._reference = reference
        self._found = _advantages(groups, settings)
        self.advantages: list[list[float]] = self._found.advantages_PG.tolist()
        self._old: dict[Sample, Tensor] = {}
        self._reference_logprobs: dict[Sample, Tensor] = {}
        self._rows: dict[MicroBatch, PackedRow] = {}

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths; groups that can have no gradient are marked, where enough of the batch is so."""
        lengths = [tuple(len(t.token_ids) for t in group.trajectories) for group in self._groups]
        silent = self._silent([sum(completions) for completions in lengths])
        return [
            GroupShape(
                prompt_tokens=len(group.trajectories[0].prompt_ids),
                completion_tokens=completions,
                learns=not quiet,
            )
            for group, completions, quiet in zip(self._groups, lengths, silent, strict=True)
        ]

    def _silent(self, tokens: Sequence[int]) -> list[bool]:
        """Zero-variance groups, unless another term of the loss reaches them or a pass is not worth it."""
        loss = self._settings.loss
        silent: list[bool] = self._found.zero_variance_P.tolist()
        share = sum(n for n, quiet in zip(tokens, silent, strict=True) if quiet) / sum(tokens)
        reached = loss.kl_coefficient > 0 or loss.entropy_coefficient > 0
        if not self._place.skips_silent or reached or share < SILENT_SHARE_MIN:
            return [False] * len(silent)
        return silent

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """Old logprobs (several updates under ``Learner``) and reference logprobs, without gradient."""
        if self._settings.old_logprobs == "Learner" and self._settings.num_updates > 1:
            self._score(model, passes, self._old)
        if self._reference is not None:
            self._score(self._reference, passes, self._reference_logprobs)

    def denominators(self, update: Update) -> Denominators:
        """Tokens and sequences of the mini-batch that count in the loss."""
        masks = [sum(t.loss_mask) for chunk in update.chunks() for t in self._of(chunk)]
        return Denominators(
            num_tokens=sum(masks),
            num_sequences=sum(tokens > 0 for tokens in masks),
            width=self._settings.width,
        )

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """GRPO on one row."""
        row = self._row(micro)
        stats = token_logprobs(model, row, temperature=self._settings.temperature, entropy=True)
        bonus = self._settings.loss.entropy_coefficient > 0
        assert stats.entropy_C is not None
        tokens = PolicyTokens(
            logprobs_C=stats.logprobs_C,
            old_logprobs_C=self._old_logprobs(micro, stats.logprobs_C),
            actor_logprobs_C=self._per_token(micro, lambda t: t.actor_logprobs),
            advantages_C=self._advantages_of(micro),
            mask_C=self._per_token(micro, lambda t: t.loss_mask),
            sequence_C=self._sequences(row),
            reference_logprobs_C=self._stored(micro, self._reference_logprobs),
            entropy_C=stats.entropy_C if bonus else stats.entropy_C.detach(),
        )
        found = grpo_loss(tokens, self._settings.loss, whole)
        view = TokenView(
            lengths=row.lengths,
            logprobs_C=tokens.logprobs_C.detach(),
            entropy_C=stats.entropy_C.detach(),
            mask_C=tokens.mask_C,
            old_logprobs_C=tokens.old_logprobs_C,
            actor_logprobs_C=tokens.actor_logprobs_C,
        )
        return MicroLoss(loss=found.loss, sums=found.sums, maxima=found.maxima, tokens=view)

    def filtered(self) -> Mapping[int, str]:
        """None: zero-variance groups are consumed (dynamic sampling is the coordinator's)."""
        return {}

    def metrics(self, step: int) -> dict[str, Any]:
        """Rewards, advantages, lengths and staleness of the batch."""
        return describe_groups(self._groups, self._found, step)

    def _score(
        self,
        model: nn.Module,
        passes: Sequence[Sequence[MicroBatch]],
        store: dict[Sample, Tensor],
    ) -> None:
        with torch.no_grad():
            for micro in chain.from_iterable(passes):
                row = self._row(micro)
                stats = token_logprobs(model, row, temperature=self._settings.temperature)
                parts = stats.logprobs_C.split(row.lengths)
                store.update(zip(self._samples(micro), parts, strict=True))

    def _old_logprobs(self, micro: MicroBatch, current: Tensor) -> Tensor:
        """The ratio's denominator: stored, the actors', or (one on-policy update) the current ones."""
        if self._settings.old_logprobs == "Actor":
            return self._per_token(micro, lambda t: t.actor_logprobs)
        stored = self._stored(micro, self._old)
        return current.detach() if stored is None else stored

    def _stored(self, micro: MicroBatch, store: dict[Sample, Tensor]) -> Tensor | None:
        if not store:
            return None
        return torch.cat([store[sample] for sample in self._samples(micro)])

    def _row(self, micro: MicroBatch) -> PackedRow:
        if micro not in self._rows:
            groups = [self._tokens(chunk) for chunk in micro.chunks]
            self._rows[micro] = build_group_row(groups).to(self._place.device)
        return self._rows[micro]

    def _tokens(self, chunk: Chunk) -> GroupTokens:
        trajectories = self._of(chunk)
        return GroupTokens(
            prompt_ids=trajectories[0].prompt_ids,
            completion_ids=tuple(t.token_ids for t in trajectories),
        )

    def _of(self, chunk: Chunk) -> list[Trajectory]:
        found = self._groups[chunk.group].trajectories
        return [found[sample] for sample in chunk.samples]

    def _samples(self, micro: MicroBatch) -> list[Sample]:
        return [(chunk.group, sample) for chunk in micro.chunks for sample in chunk.samples]

    def _per_token(
        self, micro: MicroBatch, read: Callable[[Trajectory], Iterable[float]]
    ) -> Tensor:
        values = [v for chunk in micro.chunks for t in self._of(chunk) for v in read(t)]
        return torch.tensor(values, dtype=torch.float32, device=self._place.device)

    def _advantages_of(self, micro: MicroBatch) -> Tensor:
        values = [
            self.advantages[group][sample]
            for group, sample in self._samples(micro)
            for _ in self._groups[group].trajectories[sample].token_ids
        ]
        return torch.tensor(values, dtype=torch.float32, device=self._place.device)

    def _sequences(self, row: PackedRow) -> Tensor:
        lengths = torch.tensor(row.lengths, device=self._place.device)
        return torch.arange(len(row.lengths), device=self._place.device).repeat_interleave(
            lengths, output_size=int(row.targets_C.shape[0])
        )


def _advantages(groups: Sequence[TrajectoryGroup], settings: PolicySettings) -> GroupAdvantages:
    widest = max(len(group.trajectories) for group in groups)
    rewards_PG = torch.zeros(len(groups), widest, dtype=torch.float64)
    mask_PG = torch.zeros(len(groups), widest, dtype=torch.float64)
    for position, group in enumerate(groups):
        found = [t.reward for t in group.trajectories]
        rewards_PG[position, : len(found)] = torch.tensor(found, dtype=torch.float64)
        mask_PG[position, : len(found)] = 1.0
    return group_advantages(
        rewards_PG, mask_PG, settings.advantage_scale, settings.advantage_epsilon
    )

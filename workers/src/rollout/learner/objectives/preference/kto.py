"""A step of KTO: answers with a label, valued against a reference point that the whole batch shares.

Before the first backward, one pass without gradient scores every prompt with another row's answer,
under the policy as it stands and under the reference: from these comes z. It is taken over all ranks and
micro-batches, so it does not depend on the cut. (``klBatch: MicroBatch`` takes it over each micro-batch,
as TRL does, with answers going round by one inside it: then the cut matters.)

Axes: C scored tokens of a micro-batch, B rows of it; the last axis of size 2 is own, mismatched answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.preference.kto import kto_losses, mismatched_answers, reference_point
from rollout.learner.config.preference import LabelSettings, build_kto
from rollout.learner.context import LearnerContext
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    PackedRow,
    build_group_row,
    token_logprobs,
)
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.contract import MicroLoss, Work
from rollout.learner.objectives.objective import Objective
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update
from rollout.learner.objectives.preference.batch import (
    PreferenceBatch,
    answer_sums,
    positions_of,
    score_answers,
)
from rollout.learner.objectives.preference.data import (
    Ids,
    LabelledTokens,
    digest_labelled,
    render_labelled,
)
from rollout.learner.objectives.preference.reference_cache import ReferenceCache, cached_sums
from rollout.protocol.messages import Batch

Ratios = dict[int, float]
"""Log ratio of policy and reference, in nats, by the row whose prompt is answered."""


class KtoWork:
    """The labelled answers of one step; keeps z and the reference's logprobs from before the update."""

    def __init__(
        self,
        rows: Sequence[LabelledTokens],
        settings: LabelSettings,
        parallel: Parallel,
        reference: nn.Module,
        cache: ReferenceCache | None = None,
    ) -> None:
        self.rows = rows
        self._settings = settings
        self._parallel = parallel
        self._reference = reference
        self._cache = cache
        self._batch = PreferenceBatch(rows, settings.max_length, parallel.device)
        self._partners = self._match([i for i in range(len(rows)) if i not in self._batch.left_out])
        self._reference_sums: dict[int, Tensor] = {}
        self._points: dict[MicroBatch, Tensor] = {}

    def shapes(self) -> Sequence[GroupShape]:
        """One answer a row."""
        return self._batch.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """The reference's logprobs, and z, without gradient."""
        found: dict[MicroBatch, Ratios] = {}
        if self._cache is not None:
            sums = cached_sums(
                self._cache, chain.from_iterable(passes), self._batch.groups.__getitem__
            )
            self._reference_sums = {row: sums_1[0] for row, sums_1 in sums.items()}
        with torch.no_grad():
            for micro in chain.from_iterable(passes):
                found[micro] = self._compare(model, micro)
        if self._settings.per_micro_batch:
            self._points = {micro: self._point(ratios) for micro, ratios in found.items()}
            return
        own = {row: value for ratios in found.values() for row, value in ratios.items()}
        everywhere = {r: v for rank in self._parallel.gather(own, Ratios) for r, v in rank.items()}
        self._points = dict.fromkeys(found, self._point(everywhere))

    def denominators(self, update: Update) -> Denominators:
        """Rows of the whole batch."""
        rows = [chunk.group for chunk in update.chunks()]
        tokens = sum(len(self.rows[row].answer_ids) for row in rows)
        return Denominators(num_tokens=tokens, num_sequences=len(rows), width=1)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The share of one row of answers."""
        positions = positions_of(micro)
        scored = score_answers(model, self._batch.row(positions))
        logprobs_B = scored.sums_S
        reference_B = torch.stack([self._reference_sums[i] for i in positions])
        good_B = torch.tensor(
            [self.rows[i].desirable for i in positions], device=self._parallel.device
        )
        point = self._points[micro].to(logprobs_B.dtype)
        losses_B = kto_losses(logprobs_B - reference_B, good_B, point, self._settings.loss)
        loss = losses_B.sum() / max(whole.num_sequences, 1)
        return MicroLoss(
            loss=loss,
            sums={
                **scored.sums,
                "preference_loss": loss.detach(),
                **self._describe(logprobs_B.detach(), reference_B, good_B),
            },
            maxima={"kl_reference_point": point},
            tokens=scored.tokens,
        )

    def filtered(self) -> Mapping[int, str]:
        """Rows that are too long."""
        return self._batch.left_out

    def metrics(self, step: int) -> dict[str, Any]:
        """Lengths, how many rows are good, and how many were left out."""
        del step
        kept = [row.desirable for i, row in enumerate(self.rows) if i not in self._batch.left_out]
        return {
            **self._batch.describe(),
            "num_desirable": sum(kept),
            "num_undesirable": len(kept) - sum(kept),
        }

    def _match(self, kept: Sequence[int]) -> dict[int, int | None]:
        """The row whose answer is put to each row's prompt, over the whole batch in its order."""
        partners = mismatched_answers([self.rows[i].prompt_ids for i in kept])
        return {
            row: None if partner is None else kept[partner]
            for row, partner in zip(kept, partners, strict=True)
        }

    def _partners_of(self, positions: Sequence[int]) -> list[int | None]:
        if not self._settings.per_micro_batch:
            return [self._partners[i] for i in positions]
        return [None] if len(positions) == 1 else [positions[-1], *positions[:-1]]

    def _compare(self, model: nn.Module, micro: MicroBatch) -> Ratios:
        """Keep the reference's logprobs of the own answers; log ratios of the mismatched ones.

        A row without a partner is scored with its own answer, so that every rank makes every pass,
        and does not count.
        """
        positions = positions_of(micro)
        partners = self._partners_of(positions)
        others = [
            self.rows[row if partner is None else partner].answer_ids
            for row, partner in zip(positions, partners, strict=True)
        ]
        single = self._row(positions, [(other,) for other in others])
        policy_B = answer_sums(token_logprobs(model, single), single)
        ratios = (policy_B - self._reference_of(positions, others, single)).tolist()
        found = zip(positions, partners, ratios, strict=True)
        return {row: ratio for row, partner, ratio in found if partner is not None}

    def _reference_of(
        self, positions: Sequence[int], others: Sequence[Ids], single: PackedRow
    ) -> Tensor:
        """The reference's logprobs of the mismatched answers; where nothing is cached, the own ones too.

        A mismatched answer is another one each epoch, so that it is never found.
        """
        if self._cache is not None:
            return answer_sums(token_logprobs(self._reference, single), single)
        own = [self.rows[i].answer_ids for i in positions]
        both = self._row(positions, list(zip(own, others, strict=True)))
        reference_B2 = answer_sums(token_logprobs(self._reference, both), both).view(-1, 2)
        self._reference_sums.update(zip(positions, reference_B2[:, 0], strict=True))
        return reference_B2[:, 1]

    def _point(self, ratios: Ratios) -> Tensor:
        """The scalar z in float64, rows added in order: equal on every rank."""
        values = [ratios[row] for row in sorted(ratios)]
        return reference_point(
            torch.tensor(values, dtype=torch.float64, device=self._parallel.device)
        )

    def _describe(
        self, logprobs_B: Tensor, reference_B: Tensor, good_B: Tensor
    ) -> dict[str, Tensor]:
        rewards = self._settings.loss.beta * (logprobs_B - reference_B)
        zero = torch.zeros_like(rewards)
        return {
            "desirable": good_B.sum(),
            "undesirable": (~good_B).sum(),
            "desirable_reward": torch.where(good_B, rewards, zero).sum(),
            "undesirable_reward": torch.where(good_B, zero, rewards).sum(),
            "desirable_logprob": torch.where(good_B, logprobs_B, zero).sum(),
            "undesirable_logprob": torch.where(good_B, zero, logprobs_B).sum(),
        }

    def _row(
        self, positions: Sequence[int], answers: Sequence[tuple[tuple[int, ...], ...]]
    ) -> PackedRow:
        groups = [
            GroupTokens(prompt_ids=self.rows[i].prompt_ids, completion_ids=found)
            for i, found in zip(positions, answers, strict=True)
        ]
        return build_group_row(groups).to(self._parallel.device)


def _build_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, LabelSettings)
    assert parts.renderer is not None
    assert parts.reference is not None
    rows = render_labelled(batch.rows, parts.renderer)
    work = KtoWork(rows, algorithm, parts.parallel, parts.reference, parts.reference_cache)
    return work, digest_labelled(rows)


KTO = Objective(
    name="kto",
    settings=LabelSettings,
    build_settings=build_kto,
    build_work=_build_work,
    compares_rows=True,
)

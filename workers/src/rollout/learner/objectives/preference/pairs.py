"""A step on pairs of answers: DPO, IPO, ORPO, SimPO. Both answers of a pair share one pass of its prompt.

Axes: C scored tokens of a micro-batch, P pairs; the last axis of size 2 is chosen, rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.preference.dpo import DpoSettings, dpo_losses
from rollout.algorithms.preference.ipo import IpoSettings, ipo_losses
from rollout.algorithms.preference.orpo import OrpoSettings, orpo_losses
from rollout.algorithms.preference.pairs import PairLogprobs, PairLosses
from rollout.algorithms.preference.simpo import SimpoSettings, simpo_losses
from rollout.learner.config.preference import (
    PairSettings,
    build_dpo,
    build_ipo,
    build_orpo,
    build_simpo,
)
from rollout.learner.context import LearnerContext
from rollout.learner.forward.packed_rows import (
    PackedRow,
    token_logprobs,
)
from rollout.learner.objectives.contract import MicroLoss, Work
from rollout.learner.objectives.objective import Objective
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update
from rollout.learner.objectives.preference.batch import (
    PreferenceBatch,
    answer_sums,
    positions_of,
    score_answers,
)
from rollout.learner.objectives.preference.data import PairTokens, digest_pairs, render_pairs
from rollout.learner.objectives.preference.reference_cache import ReferenceCache, cached_sums
from rollout.protocol.messages import Batch

LOSSES: Mapping[type, Callable[[PairLogprobs, Any], PairLosses]] = {
    DpoSettings: dpo_losses,
    IpoSettings: ipo_losses,
    OrpoSettings: orpo_losses,
    SimpoSettings: simpo_losses,
}


class PairWork:
    """The pairs of one step; keeps the reference's logprobs from before the update."""

    def __init__(
        self,
        pairs: Sequence[PairTokens],
        settings: PairSettings,
        device: torch.device,
        reference: nn.Module | None,
        cache: ReferenceCache | None = None,
    ) -> None:
        self.pairs = pairs
        self._settings = settings
        self._batch = PreferenceBatch(pairs, settings.max_length, device)
        self._reference = reference
        self._cache = cache
        self._reference_sums: dict[int, Tensor] = {}
        self._rows: dict[MicroBatch, PackedRow] = {}

    def shapes(self) -> Sequence[GroupShape]:
        """One sample a pair: its two answers stay together."""
        return self._batch.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """The reference's logprobs, without gradient."""
        del model
        if self._reference is None:
            return
        if self._cache is not None:
            group = self._batch.groups.__getitem__
            self._reference_sums = cached_sums(self._cache, chain.from_iterable(passes), group)
            return
        with torch.no_grad():
            for micro in chain.from_iterable(passes):
                row = self._row(micro)
                sums_P2 = answer_sums(token_logprobs(self._reference, row), row).view(-1, 2)
                self._reference_sums.update(zip(positions_of(micro), sums_P2, strict=True))

    def denominators(self, update: Update) -> Denominators:
        """Pairs of the whole batch, and tokens of their chosen answers."""
        positions = [chunk.group for chunk in update.chunks()]
        chosen = sum(len(self.pairs[position].chosen_ids) for position in positions)
        return Denominators(num_tokens=chosen, num_sequences=len(positions), width=1)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The share of one row of pairs."""
        row = self._row(micro)
        scored = score_answers(model, row, per_item=2)
        pairs = self._logprobs(micro, row, scored.sums_S.view(-1, 2))
        found = LOSSES[type(self._settings.loss)](pairs, self._settings.loss)
        preference = found.losses_P.sum() / max(whole.num_sequences, 1)
        sft = self._likelihood(pairs, whole)
        sums = {
            **scored.sums,
            "preference_loss": preference.detach(),
            **({} if sft is None else {"sft_loss": sft.detach()}),
            **describe_pairs(found),
            "chosen_logprob": pairs.chosen_P.detach().sum(),
            "rejected_logprob": pairs.rejected_P.detach().sum(),
        }
        loss = preference if sft is None else preference + sft
        return MicroLoss(loss=loss, sums=sums, tokens=scored.tokens)

    def filtered(self) -> Mapping[int, str]:
        """Pairs that are too long."""
        return self._batch.left_out

    def metrics(self, step: int) -> dict[str, Any]:
        """Lengths, and how many pairs were left out."""
        del step
        return self._batch.describe()

    def _likelihood(self, pairs: PairLogprobs, whole: Denominators) -> Tensor | None:
        """The added likelihood loss of the chosen answers, where there is one."""
        loss = self._settings.loss
        if not isinstance(loss, DpoSettings) or loss.sft_coefficient == 0:
            return None
        return -loss.sft_coefficient * pairs.chosen_P.sum() / max(whole.num_tokens, 1)

    def _logprobs(self, micro: MicroBatch, row: PackedRow, policy_P2: Tensor) -> PairLogprobs:
        tokens_P2 = torch.tensor(row.lengths, device=policy_P2.device).view(-1, 2)
        reference_P2 = None
        if self._reference is not None:
            reference_P2 = torch.stack([self._reference_sums[i] for i in positions_of(micro)])
        return PairLogprobs(
            chosen_P=policy_P2[:, 0],
            rejected_P=policy_P2[:, 1],
            chosen_tokens_P=tokens_P2[:, 0],
            rejected_tokens_P=tokens_P2[:, 1],
            reference_chosen_P=None if reference_P2 is None else reference_P2[:, 0],
            reference_rejected_P=None if reference_P2 is None else reference_P2[:, 1],
        )

    def _row(self, micro: MicroBatch) -> PackedRow:
        if micro not in self._rows:
            self._rows[micro] = self._batch.row(positions_of(micro))
        return self._rows[micro]


def describe_pairs(found: PairLosses) -> dict[str, Tensor]:
    """Detached sums over a micro-batch's pairs: how many, their rewards, how many are in order."""
    chosen, rejected = found.chosen_rewards_P, found.rejected_rewards_P
    return {
        "pairs": chosen.new_tensor(chosen.shape[0]),
        "chosen_reward": chosen.sum(),
        "rejected_reward": rejected.sum(),
        "reward_margin": (chosen - rejected).sum(),
        "preferred": (chosen > rejected).to(chosen.dtype).sum(),
    }


def _build_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, PairSettings)
    assert parts.renderer is not None
    pairs = render_pairs(batch.rows, parts.renderer)
    work = PairWork(pairs, algorithm, parts.parallel.device, parts.reference, parts.reference_cache)
    return work, digest_pairs(pairs)


DPO = Objective(name="dpo", settings=DpoSettings, build_settings=build_dpo, build_work=_build_work)
IPO = Objective(name="ipo", settings=IpoSettings, build_settings=build_ipo, build_work=_build_work)
ORPO = Objective(
    name="orpo", settings=OrpoSettings, build_settings=build_orpo, build_work=_build_work
)
SIMPO = Objective(
    name="simpo", settings=SimpoSettings, build_settings=build_simpo, build_work=_build_work
)

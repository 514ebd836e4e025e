"""What must hold of every preference loss, whatever the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.algorithms.preference.dpo import DpoSettings, dpo_losses
from rollout.algorithms.preference.ipo import IpoSettings, ipo_losses
from rollout.algorithms.preference.kto import KtoSettings, kto_losses, mismatched_answers
from rollout.algorithms.preference.orpo import OrpoSettings, orpo_losses
from rollout.algorithms.preference.pairs import PairLogprobs, PairLosses, sum_answers
from rollout.algorithms.preference.reward_model import RewardModelSettings, reward_model_losses
from rollout.algorithms.preference.simpo import SimpoSettings, simpo_losses

SEEDS = st.integers(0, 2**31)
TENSORS = tuple(PairLogprobs.__dataclass_fields__)

PairLoss = Callable[[PairLogprobs], PairLosses]


def _dpo(**knobs) -> PairLoss:
    return lambda pairs: dpo_losses(pairs, DpoSettings(**knobs))


def _rm(pairs: PairLogprobs) -> PairLosses:
    margins = torch.full_like(pairs.chosen_P, 0.3)
    settings = RewardModelSettings(centering_coefficient=0.05)
    return reward_model_losses(pairs.chosen_P, pairs.rejected_P, margins, settings)


LOSSES: dict[str, PairLoss] = {
    "sigmoid": _dpo(beta=0.3),
    "conservative": _dpo(beta=0.3, form="Conservative", label_smoothing=0.2),
    "robust": _dpo(beta=0.3, form="Robust", label_smoothing=0.2),
    "hinge": _dpo(beta=0.3, form="Hinge"),
    "ipo": lambda pairs: ipo_losses(pairs, IpoSettings(beta=0.2)),
    "ipo-sum": lambda pairs: ipo_losses(pairs, IpoSettings(beta=0.2, aggregation="SequenceSum")),
    "orpo": lambda pairs: orpo_losses(pairs, OrpoSettings(beta=0.4)),
    "simpo": lambda pairs: simpo_losses(pairs, SimpoSettings()),
    "rm": _rm,
}
NAMES = st.sampled_from(sorted(LOSSES))


def make_pairs(seed: int, count: int = 5) -> PairLogprobs:
    noise = torch.Generator().manual_seed(seed)

    def tokens() -> torch.Tensor:
        return torch.randint(1, 7, (count,), generator=noise).double()

    def logprobs(lengths: torch.Tensor) -> torch.Tensor:
        each = 0.2 + 2 * torch.rand(count, generator=noise, dtype=torch.float64)
        return -lengths * each

    chosen, rejected = tokens(), tokens()
    return PairLogprobs(
        chosen_P=logprobs(chosen),
        rejected_P=logprobs(rejected),
        chosen_tokens_P=chosen,
        rejected_tokens_P=rejected,
        reference_chosen_P=logprobs(chosen),
        reference_rejected_P=logprobs(rejected),
    )


def swapped(pairs: PairLogprobs) -> PairLogprobs:
    def other(name: str) -> str:
        return name.replace("chosen", "?").replace("rejected", "chosen").replace("?", "rejected")

    return PairLogprobs(**{other(name): getattr(pairs, name) for name in TENSORS})


def select(pairs: PairLogprobs, index: torch.Tensor) -> PairLogprobs:
    return PairLogprobs(**{name: getattr(pairs, name)[index] for name in TENSORS})


@given(SEEDS, NAMES)
def test_swapping_chosen_and_rejected_flips_the_margin(seed, name) -> None:
    pairs = make_pairs(seed)
    here, there = LOSSES[name](pairs), LOSSES[name](swapped(pairs))
    margin = here.chosen_rewards_P - here.rejected_rewards_P
    assert torch.equal(margin, there.rejected_rewards_P - there.chosen_rewards_P)


@given(SEEDS, NAMES)
def test_pairs_stand_alone_so_any_cut_and_order_adds_up_to_the_whole(seed, name) -> None:
    pairs = make_pairs(seed, 8)
    whole = LOSSES[name](pairs).losses_P
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    parts = torch.cat([LOSSES[name](select(pairs, index[None])).losses_P for index in order])
    assert torch.allclose(parts, whole[order], rtol=1e-14)


@given(SEEDS, st.sampled_from(["sigmoid", "conservative"]))
def test_a_policy_equal_to_its_reference_pays_log_two(seed, name) -> None:
    pairs = make_pairs(seed)
    same = replace(pairs, reference_chosen_P=pairs.chosen_P, reference_rejected_P=pairs.rejected_P)
    assert torch.allclose(LOSSES[name](same).losses_P, torch.full((5,), math.log(2)).double())


@given(SEEDS, st.sampled_from(["Conservative", "Robust"]))
def test_without_smoothing_every_log_form_is_the_plain_one(seed, form) -> None:
    pairs = make_pairs(seed)
    plain = dpo_losses(pairs, DpoSettings()).losses_P
    assert torch.allclose(dpo_losses(pairs, DpoSettings(form=form)).losses_P, plain)


@given(SEEDS)
def test_the_robust_form_undoes_swapped_labels_on_average(seed) -> None:
    """Expected over labels swapped with probability e, the robust loss is the loss of true labels."""
    pairs, share = make_pairs(seed), 0.2
    robust = DpoSettings(form="Robust", label_smoothing=share)
    straight = dpo_losses(pairs, robust).losses_P
    turned = dpo_losses(swapped(pairs), robust).losses_P
    expected = dpo_losses(pairs, DpoSettings()).losses_P
    assert torch.allclose((1 - share) * straight + share * turned, expected)


@given(SEEDS, st.sampled_from(["ipo", "orpo", "simpo"]))
def test_repeating_every_token_changes_no_mean(seed, name) -> None:
    pairs = make_pairs(seed)
    double = PairLogprobs(**{field: 2 * getattr(pairs, field) for field in TENSORS})
    assert torch.allclose(LOSSES[name](double).losses_P, LOSSES[name](pairs).losses_P)


@given(SEEDS, st.sampled_from(["sigmoid", "conservative", "simpo", "rm", "orpo"]))
def test_the_gradient_raises_the_chosen_and_lowers_the_rejected(seed, name) -> None:
    pairs = make_pairs(seed)
    if name == "conservative":  # beyond its own optimum it pulls back: stay below
        pairs = replace(
            pairs, chosen_P=pairs.reference_chosen_P, rejected_P=pairs.reference_rejected_P
        )
    if name == "rm":  # the centering term pulls sums to zero: keep them there
        pairs = replace(pairs, rejected_P=-pairs.chosen_P)
    chosen = pairs.chosen_P.clone().requires_grad_()
    rejected = pairs.rejected_P.clone().requires_grad_()
    LOSSES[name](replace(pairs, chosen_P=chosen, rejected_P=rejected)).losses_P.sum().backward()
    assert (chosen.grad < 0).all()
    assert (rejected.grad > 0).all()


@settings(max_examples=15)
@given(SEEDS, NAMES)
def test_the_gradient_equals_finite_differences(seed, name) -> None:
    pairs = make_pairs(seed, 3)

    def loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return LOSSES[name](replace(pairs, chosen_P=chosen, rejected_P=rejected)).losses_P

    inputs = (pairs.chosen_P.requires_grad_(), pairs.rejected_P.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs, atol=1e-6)


@settings(max_examples=15)
@given(SEEDS)
def test_the_kto_gradient_equals_finite_differences_and_points_the_right_way(seed) -> None:
    noise = torch.Generator().manual_seed(seed)
    ratios = torch.randn(6, generator=noise, dtype=torch.float64, requires_grad=True)
    good = torch.rand(6, generator=noise) < 0.5
    knobs = KtoSettings(beta=0.7, desirable_weight=1.3)

    def loss(ratios: torch.Tensor) -> torch.Tensor:
        return kto_losses(ratios, good, torch.tensor(0.3).double(), knobs)

    assert torch.autograd.gradcheck(loss, (ratios,))
    loss(ratios).sum().backward()
    assert torch.equal(ratios.grad < 0, good)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_a_mismatched_answer_is_the_nearest_before_with_another_prompt(prompts) -> None:
    for row, partner in enumerate(mismatched_answers(prompts)):
        if partner is None:
            assert set(prompts) == {prompts[row]}
            continue
        assert prompts[partner] != prompts[row]
        between = (row - partner) % len(prompts)
        assert all(
            prompts[(row - back) % len(prompts)] == prompts[row] for back in range(1, between)
        )


@given(SEEDS)
def test_what_lies_under_the_mask_changes_no_sum(seed) -> None:
    noise = torch.Generator().manual_seed(seed)
    values = torch.randn(12, generator=noise, dtype=torch.float64)
    mask = torch.rand(12, generator=noise) > 0.3
    answers = torch.arange(12) // 4
    spoilt = torch.where(mask, values, torch.nan)
    kept = mask.nonzero()[:, 0]
    whole = sum_answers(spoilt, mask, answers, 3)
    assert torch.equal(whole, sum_answers(values, mask, answers, 3))
    assert torch.allclose(whole, sum_answers(values[kept], mask[kept], answers[kept], 3))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_extreme_margins_stay_finite_in_float32(name) -> None:
    far = torch.tensor([-1e5, -1e-7])
    pairs = PairLogprobs(
        chosen_P=far.clone().requires_grad_(),
        rejected_P=far.flip(0),
        chosen_tokens_P=torch.ones(2),
        rejected_tokens_P=torch.ones(2),
        reference_chosen_P=far.flip(0),
        reference_rejected_P=far,
    )
    losses = LOSSES[name](pairs).losses_P
    losses.sum().backward()
    assert losses.isfinite().all()
    assert pairs.chosen_P.grad.isfinite().all()

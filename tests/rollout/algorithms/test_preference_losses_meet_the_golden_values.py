"""Values of ``golden/preference.json`` for preference losses, and tables worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rollout.algorithms.preference.dpo import DpoSettings, dpo_losses
from rollout.algorithms.preference.ipo import IpoSettings, ipo_losses, target_margin
from rollout.algorithms.preference.kto import (
    KtoSettings,
    kto_losses,
    mismatched_answers,
    reference_point,
)
from rollout.algorithms.preference.orpo import OrpoSettings, log_odds, orpo_losses
from rollout.algorithms.preference.pairs import PairLogprobs, sum_answers
from rollout.algorithms.preference.reward_model import RewardModelSettings, reward_model_losses
from rollout.algorithms.preference.simpo import SimpoSettings, simpo_losses
from rollout.algorithms.sft import sft_loss


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


GOLDEN = json.loads((Path(__file__).parent / "golden" / "preference.json").read_text())
INPUTS: dict[str, list[float]] = GOLDEN["inputs"]
CHOSEN, REJECTED = tensor(*INPUTS["chosen"]), tensor(*INPUTS["rejected"])
REFERENCE = tensor(-7.0, -9.0, -3.0)
PAIRS = PairLogprobs(
    chosen_P=REFERENCE + CHOSEN,
    rejected_P=REFERENCE + REJECTED,
    chosen_tokens_P=tensor(*INPUTS["chosen_tokens"]),
    rejected_tokens_P=tensor(*INPUTS["rejected_tokens"]),
    reference_chosen_P=REFERENCE,
    reference_rejected_P=REFERENCE,
)


def losses_of(case: dict[str, Any]) -> torch.Tensor:
    """Of a policy that far from its reference, or of scores that high."""
    if case["loss"] == "dpo":
        return dpo_losses(PAIRS, DpoSettings(**case["settings"])).losses_P
    if case["loss"] == "ipo":
        return ipo_losses(PAIRS, IpoSettings(**case["settings"])).losses_P
    settings = RewardModelSettings(**case["settings"])
    return reward_model_losses(CHOSEN, REJECTED, torch.zeros(3), settings).losses_P


@pytest.mark.parametrize("case", GOLDEN["pairs"], ids=lambda case: case["name"])
def test_each_loss_of_pairs_meets_the_golden_value(case) -> None:
    assert float(losses_of(case).mean()) == pytest.approx(case["expected"], abs=1e-6)


def test_kto_meets_the_golden_value() -> None:
    case = GOLDEN["kto"]
    good = torch.tensor([True] * 3 + [False] * 3)
    ratios, point = torch.cat([CHOSEN, REJECTED]), tensor(case["reference_point"])[0]
    losses = kto_losses(ratios, good, point, KtoSettings(beta=case["beta"]))
    assert float(losses.mean()) == pytest.approx(case["expected"], abs=1e-6)


@pytest.mark.parametrize(
    ("form", "smoothing", "expected"),
    [
        # one pair, h = log 3: sigmoid(h) = 3/4, sigmoid(-h) = 1/4
        ("Sigmoid", 0.0, math.log(4 / 3)),
        # 0.8 log(4/3) + 0.2 log 4
        ("Conservative", 0.2, 0.8 * math.log(4 / 3) + 0.2 * math.log(4)),
        # (0.8 log(4/3) - 0.2 log 4) / 0.6
        ("Robust", 0.2, (0.8 * math.log(4 / 3) - 0.2 * math.log(4)) / 0.6),
        # max(0, 1 - log 3) = 0, since log 3 = 1.0986
        ("Hinge", 0.0, 0.0),
    ],
)
def test_a_pair_three_to_one_has_the_loss_computed_by_hand(form, smoothing, expected) -> None:
    pair = PairLogprobs(
        chosen_P=tensor(math.log(3)),
        rejected_P=tensor(0),
        chosen_tokens_P=tensor(1),
        rejected_tokens_P=tensor(1),
        reference_chosen_P=tensor(0),
        reference_rejected_P=tensor(0),
    )
    settings = DpoSettings(beta=1.0, form=form, label_smoothing=smoothing)
    assert float(dpo_losses(pair, settings).losses_P) == pytest.approx(expected)


def test_the_ipo_target_is_half_the_inverse_of_beta() -> None:
    assert target_margin(0.1) == 5.0
    assert target_margin(0.5) == 1.0


def test_orpo_has_the_loss_computed_by_hand() -> None:
    # p(c) = 1/2 and p(r) = 1/4 per token (2 and 3 tokens): odds 1 and 1/3, odds ratio 3,
    # sigmoid(log 3) = 3/4: loss = log 2 - 0.1 log(3/4)
    pair = PairLogprobs(
        chosen_P=tensor(2 * math.log(1 / 2)),
        rejected_P=tensor(3 * math.log(1 / 4)),
        chosen_tokens_P=tensor(2),
        rejected_tokens_P=tensor(3),
    )
    found = orpo_losses(pair, OrpoSettings(beta=0.1))
    assert float(found.losses_P) == pytest.approx(math.log(2) - 0.1 * math.log(3 / 4))
    assert log_odds(tensor(math.log(1 / 2), 0.0)).isfinite().all()


def test_simpo_has_the_loss_computed_by_hand() -> None:
    # means log(1/2) and log(1/8), beta 1: the difference is log 4; gamma log 2 leaves log 2,
    # sigmoid(log 2) = 2/3
    pair = PairLogprobs(
        chosen_P=tensor(4 * math.log(1 / 2)),
        rejected_P=tensor(2 * math.log(1 / 8)),
        chosen_tokens_P=tensor(4),
        rejected_tokens_P=tensor(2),
    )
    found = simpo_losses(pair, SimpoSettings(beta=1.0, gamma=math.log(2)))
    assert float(found.losses_P) == pytest.approx(math.log(3 / 2))


def test_kto_weighs_each_side_and_never_has_a_reference_point_below_zero() -> None:
    assert float(reference_point(tensor(-1.0, 0.5))) == 0.0  # mean -0.25
    assert float(reference_point(tensor(1.0, 0.5))) == 0.75
    assert float(reference_point(tensor())) == 0.0
    # beta 1, z = 0: good log 3 -> 1 - 3/4; bad log 3 -> 1 - 1/4
    ratios, good = tensor(math.log(3), math.log(3)), torch.tensor([True, False])
    settings = KtoSettings(beta=1.0, desirable_weight=2.0, undesirable_weight=4.0)
    assert kto_losses(ratios, good, tensor(0)[0], settings).tolist() == pytest.approx([0.5, 3.0])


def test_answers_go_round_by_one_and_past_rows_of_the_same_prompt() -> None:
    assert mismatched_answers(["a", "b", "c"]) == [2, 0, 1]
    # row 0 skips 3 (also a); row 1 skips 0 and 3
    assert mismatched_answers(["a", "a", "b", "a"]) == [2, 2, 1, 2]
    assert mismatched_answers(["a", "a"]) == [None, None]


def test_the_margin_of_a_pair_is_taken_from_the_difference() -> None:
    # scores 2 and 1, margin 1: sigmoid(0) = 1/2
    found = reward_model_losses(tensor(2), tensor(1), tensor(1), RewardModelSettings())
    assert float(found.losses_P) == pytest.approx(math.log(2))


def test_label_smoothing_has_the_loss_computed_by_hand() -> None:
    # one token, probabilities 1/2, 1/4, 1/4; the target has 1/2: mean logprob -(1 + 2 + 2)/3 log 2
    mean = -(5 / 3) * math.log(2)
    found = sft_loss(
        tensor(math.log(1 / 2)),
        tensor(1),
        1,
        mean_logprobs_C=tensor(mean),
        label_smoothing=0.3,
    )
    assert float(found) == pytest.approx(0.7 * math.log(2) + 0.3 * (5 / 3) * math.log(2))


def test_label_smoothing_equals_that_of_torch() -> None:
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(7)
    logprobs = logits.log_softmax(-1)
    ours = sft_loss(
        logprobs.gather(1, targets[:, None])[:, 0],
        torch.ones(7).double(),
        7,
        mean_logprobs_C=logprobs.mean(-1),
        label_smoothing=0.1,
    )
    theirs = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
    assert float(ours) == pytest.approx(float(theirs), abs=1e-12)


def test_answers_are_summed_over_their_own_tokens() -> None:
    values, mask = tensor(1, 2, 3, math.nan, 5), torch.tensor([1, 1, 1, 0, 1])
    sums = sum_answers(values, mask, torch.tensor([0, 0, 2, 2, 2]), 3)
    assert sums.tolist() == [3.0, 0.0, 8.0]

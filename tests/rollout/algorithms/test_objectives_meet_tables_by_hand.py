"""Every objective, estimator and penalty on numbers small enough to work out in a comment."""

from __future__ import annotations

import math

import pytest
import torch

from rollout.algorithms.advantages.groups import group_advantages, rewards_to_go
from rollout.algorithms.advantages.overlong import OverlongPenalty
from rollout.algorithms.kl import kl_loss_estimate
from rollout.algorithms.surrogate import SurrogateTokens
from rollout.algorithms.surrogates import cispo
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.dppo import Dppo
from rollout.algorithms.surrogates.gmpo import Gmpo
from rollout.algorithms.surrogates.importance import Correction, importance_weights
from rollout.algorithms.surrogates.ratio_level import level_log_ratios
from rollout.algorithms.surrogates.sapo import Sapo
from rollout.algorithms.surrogates.vespo import Vespo


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens_of(ratios, advantages, sequence=None, logprob=-1.0, **more) -> SurrogateTokens:
    logs = vector(*ratios).log()
    logprobs = torch.full_like(logs, logprob)
    return SurrogateTokens(
        logprobs_C=logprobs.requires_grad_(),
        old_logprobs_C=logprobs.detach() - logs,
        log_ratios_C=logs.requires_grad_(),
        advantages_C=vector(*advantages),
        mask_C=torch.ones_like(logs),
        sequence_C=torch.tensor(sequence or [0] * len(ratios)),
        **more,
    )


def near(*expected: float):
    return pytest.approx(list(expected), abs=1e-9)


def test_cispo_absolute_and_relative_bounds() -> None:
    # A = 2, logprob -1: loss = weight * 2; ratios 0.1, 1, 3 weigh 0.1, 1, 1.2 and 0.5, 1, 1.2
    tokens = tokens_of([0.1, 1, 3], [2, 2, 2])
    absolute = Cispo(ratio_max=1.2)(tokens)
    assert absolute.losses_C.tolist() == near(0.2, 2, 2.4)
    assert absolute.clipped_high_C.tolist() == [False, False, True]
    both = cispo.relative(clip_low=0.5, clip_high=0.2)(tokens)
    assert both.losses_C.tolist() == near(1, 2, 2.4)
    assert both.clipped_low_C.tolist() == [True, False, False]
    assert cispo.relative() == Cispo(ratio_min=0.0, ratio_max=1.2)


def test_sapo_gates_by_the_sign_of_the_advantage() -> None:
    # r = 1: sigmoid(0) * 4 / tau = 2 / tau: 2 for A > 0, 2 / 1.05 for A < 0; A = 0 loses nothing
    # r = 3, A = 1: 4 sigmoid(2) = 4 * 0.880797 = 3.523188
    loss = Sapo()(tokens_of([1, 1, 1, 3], [1, -1, 0, 1])).losses_C
    assert loss.tolist() == pytest.approx([-2, 2 / 1.05, 0, -3.523188], abs=1e-6)


def test_gmpo_is_a_geometric_mean_clipped_on_one_side() -> None:
    # A > 0, logs 0.9 and -0.9: the first is cut to 0.4, the second stays: mean -0.25, loss -2 e^-0.25
    up = Gmpo()(tokens_of([math.exp(0.9), math.exp(-0.9)], [2, 2]))
    assert up.losses_C.tolist() == near(*[-2 * math.exp(-0.25)] * 2)
    assert up.clipped_high_C.tolist() == [True, False]
    # A < 0: the first stays, the second is cut to -0.4: mean 0.25, loss 2 e^0.25
    down = Gmpo()(tokens_of([math.exp(0.9), math.exp(-0.9)], [-2, -2]))
    assert down.losses_C.tolist() == near(*[2 * math.exp(0.25)] * 2)
    assert down.clipped_low_C.tolist() == [False, True]


def test_vespo_weighs_the_whole_completion() -> None:
    # ratios 2 and 0.25: w = 0.5; A >= 0: phi = 0.5^2 e^(3 * 0.5) = 1.120422; A < 0: 0.5^3 e^(2 * 0.5)
    for advantage, phi in ((1, 0.25 * math.exp(1.5)), (-1, 0.125 * math.e)):
        loss = Vespo()(tokens_of([2, 0.25], [advantage] * 2))
        assert loss.losses_C.tolist() == near(*[phi * advantage] * 2)  # logprob is -1
        assert loss.ratios_C.tolist() == near(0.5, 0.5)
    assert Vespo()(tokens_of([1, 1], [1, 1])).losses_C.tolist() == near(1, 1)


def test_vespo_takes_token_weights_into_its_ratio_once() -> None:
    # w = 1 * (2 * 0.25) = 0.5
    loss = Vespo()(tokens_of([1, 1], [1, 1], importance_C=vector(2, 0.25)))
    assert loss.losses_C.tolist() == near(*[0.25 * math.exp(1.5)] * 2)
    assert loss.corrected


def test_dppo_leaves_out_what_moved_too_far_in_probability() -> None:
    # p = 0.5: old 0.25 moved by +0.25 (> 0.2), old 0.4 by +0.1, old 0.8 by -0.3 (< -0.2)
    logprob, ratios = math.log(0.5), [2, 1.25, 0.625]
    drift = [0.1 * math.log(r) ** 2 for r in ratios]
    up = Dppo(drift_coefficient=0.1)(tokens_of(ratios, [1, 1, 1], logprob=logprob))
    assert up.losses_C.tolist() == near(0 + drift[0], -1.25 + drift[1], -0.625 + drift[2])
    assert up.clipped_high_C.tolist() == [True, False, False]
    down = Dppo(drift_coefficient=0.1)(tokens_of(ratios, [-1, -1, -1], logprob=logprob))
    assert down.losses_C.tolist() == near(2 + drift[0], 1.25 + drift[1], 0 + drift[2])
    assert down.clipped_low_C.tolist() == [False, False, True]


def test_ratio_levels() -> None:
    # sequence 0: logs 0.2, 0.4 (0.9 masked); sequence 1: 0.1
    logs, mask = vector(0.2, 0.9, 0.4, 0.1), vector(1, 0, 1, 1)
    old, sequence = vector(-1, -1, -1, -1), torch.tensor([0, 0, 0, 1])

    def levels(level):
        return level_log_ratios(level, (old + logs) * mask, old * mask, mask, sequence)

    assert levels("Token").tolist() == near(0.2, 0, 0.4, 0.1)
    assert levels("Sequence").tolist() == near(0.3, 0, 0.3, 0.1)
    assert levels("SequenceProduct").tolist() == near(0.6, 0, 0.6, 0.1)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        # token ratios 4, 0.25 | 0.4; products 1 | 0.4
        (Correction(high=2.0), [2, 0.25, 0.4]),
        (Correction(low=0.3, high=5.0, masks=True), [4, 0, 0.4]),
        (Correction(level="Sequence", high=0.9), [0.9, 0.9, 0.4]),
        (Correction(level="Sequence", low=0.5, high=3.0, masks=True), [1, 1, 0]),
    ],
)
def test_importance_weights(correction, expected) -> None:
    old, sequence = vector(4, 0.25, 0.4).log(), torch.tensor([0, 0, 1])
    found = importance_weights(
        correction, old.requires_grad_(), vector(0, 0, 0), vector(1, 1, 1), sequence
    )
    assert found.weights_C.tolist() == near(*expected)
    assert not found.weights_C.requires_grad


def test_kl_in_the_loss_in_value_and_gradient() -> None:
    # d = 0.5: k3 = e^-0.5 + 0.5 - 1 = 0.106531, its gradient 1 - e^-0.5 = 0.393469; k2's gradient 0.5
    # ratio e^0.2 = 1.221403: corrected 0.130117, gradient r (k3 + 1 - e^-0.5) = 1.221403 * 0.5
    k3 = math.exp(-0.5) - 0.5
    expected = {
        "K1": (0.5, 1.0),
        "K2": (0.125, 0.5),
        "K3": (k3, 1 - math.exp(-0.5)),
        "K3Plus": (k3, 0.5),
        "K3Corrected": (math.exp(0.2) * k3, math.exp(0.2) * 0.5),
    }
    for estimator, (value, slope) in expected.items():
        logprobs = vector(-1.0).requires_grad_()
        found = kl_loss_estimate(logprobs, vector(-1.2), vector(-1.5), estimator)
        found.sum().backward()
        assert found.tolist() == near(value), estimator
        assert logprobs.grad.tolist() == near(slope), estimator


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0), (80, 0), (85, 0.5), (90, 1.0), (100, 2.0), (120, 2.0)]
)
def test_the_soft_penalty_grows_on_a_straight_line(length, expected) -> None:
    # limit 100, buffer 20: from 80 tokens on, 2 at 100
    assert OverlongPenalty(limit=100, buffer=20, penalty=2.0)(length) == pytest.approx(expected)


def test_leaving_one_out_takes_off_the_mean_of_the_others() -> None:
    # rewards 1, 0, 2 (the third excluded): others' means 2/1 ... of 1, 0, 2: 1, 1.5, 0.5
    found = group_advantages(vector(1, 0, 2)[None], vector(1, 1, 1)[None], "None", 0, "LeaveOneOut")
    assert found.advantages_PG[0].tolist() == near(0, -1.5, 1.5)
    alone = group_advantages(vector(1, 0, 9)[None], vector(1, 1, 0)[None], "None", 0, "LeaveOneOut")
    assert alone.advantages_PG[0].tolist() == near(1, -1, 0)


def test_without_a_baseline_equal_rewards_still_count() -> None:
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    found = group_advantages(rewards, torch.ones_like(rewards), "Whiten", baseline="None")
    assert found.advantages_PG.tolist() == [[1, 1], [0, 0]]
    assert found.zero_variance_P.tolist() == [True, True]


def test_rewards_to_go_end_with_their_sequence() -> None:
    # 1 2 4 | 8 16: 7 6 4 | 24 16
    found = rewards_to_go(vector(1, 2, 4, 8, 16), torch.tensor([0, 0, 0, 1, 1]))
    assert found.tolist() == near(7, 6, 4, 24, 16)

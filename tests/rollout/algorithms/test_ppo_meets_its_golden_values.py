"""PPO's numbers: values of verl 0.9.1 (``golden/critic.json``), and tables computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rollout.algorithms.advantages.gae import generalized_advantages
from rollout.algorithms.advantages.token_rewards import last_sampled, token_rewards
from rollout.algorithms.advantages.whitening import whiten
from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.kl_controller import KlTarget, next_kl_coefficient
from rollout.algorithms.ppo import (
    ReturnSettings,
    SampledTokens,
    ValueSettings,
    ValueTokens,
    answer_kl,
    ppo_returns,
    ppo_value_loss,
)
from rollout.algorithms.value_loss import clipped_value_loss, explained_variance

GOLDEN = json.loads((Path(__file__).parent / "golden" / "critic.json").read_text())
INPUTS: dict[str, Any] = GOLDEN["inputs"]


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


LENGTHS = torch.tensor(INPUTS["lengths"])
SEQUENCE = torch.arange(len(LENGTHS)).repeat_interleave(LENGTHS)
MASK = torch.ones(len(SEQUENCE), dtype=torch.float64)
VALUES, PREDICTED = vector(*INPUTS["values"]), vector(*INPUTS["predicted"])
REWARDS = vector(*INPUTS["rewards"])
WHOLE = Denominators(
    num_tokens=len(SEQUENCE), num_sequences=len(LENGTHS), width=int(INPUTS["width"])
)


def golden_gae():
    knobs = {name: GOLDEN["gae"][name] for name in ("gamma", "gae_lambda")}
    rewards = token_rewards(REWARDS, MASK, SEQUENCE)
    return generalized_advantages(rewards, VALUES, MASK, SEQUENCE, **knobs)


def test_whitened_advantages_meet_the_golden_row() -> None:
    advantages = golden_gae().advantages_C
    expected = GOLDEN["gae"]["whitened_first_sequence"]
    assert whiten(advantages, MASK)[:5].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_value_loss_meets_the_golden_value() -> None:
    case = GOLDEN["value_loss"]
    tokens = ValueTokens(
        values_C=PREDICTED,
        old_values_C=VALUES,
        returns_C=golden_gae().returns_C,
        mask_C=MASK,
        sequence_C=SEQUENCE,
    )
    found = ppo_value_loss(tokens, ValueSettings(clip=case["clip"]), WHOLE)
    assert float(found.loss) == pytest.approx(case["expected"], abs=1e-6)
    share = float(found.sums["value_clipped"]) / len(SEQUENCE)
    assert share == pytest.approx(case["clipped_share"], abs=1e-6)


def test_gae_meets_a_table_computed_by_hand() -> None:
    # gamma 0.5, lambda 0.5 (product 0.25); values 1, 2, 4; rewards 0, 0, 8.
    #   t = 2: delta = 8 + 0.5 * 0 - 4 = 4           A = 4
    #   t = 1: delta = 0 + 0.5 * 4 - 2 = 0           A = 0 + 0.25 * 4 = 1
    #   t = 0: delta = 0 + 0.5 * 2 - 1 = 0           A = 0 + 0.25 * 1 = 0.25
    found = generalized_advantages(
        vector(0, 0, 8),
        vector(1, 2, 4),
        torch.ones(3),
        torch.zeros(3, dtype=torch.int64),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert found.advantages_C.tolist() == [0.25, 1.0, 4.0]
    assert found.returns_C.tolist() == [1.25, 3.0, 8.0]


def test_a_bootstrapped_end_is_worth_the_critics_value() -> None:
    # As above with V = 6 after the last token: delta_2 = 8 + 0.5 * 6 - 4 = 7; A_1 = 1.75; A_0 = 0.4375.
    # The second sequence is terminal: its only token has A = 3 - 1 = 2.
    found = generalized_advantages(
        vector(0, 0, 8, 3),
        vector(1, 2, 4, 1),
        torch.ones(4),
        torch.tensor([0, 0, 0, 1]),
        gamma=0.5,
        gae_lambda=0.5,
        bootstrap_B=vector(6, 0),
    )
    assert found.advantages_C.tolist() == [0.4375, 1.75, 7.0, 2.0]


def test_a_tools_output_is_skipped() -> None:
    # The middle token is a tool's: what lies there (NaN) does not count, the neighbours are next to each
    # other. gamma 0.5, lambda 1: t = 2: A = 8 - 4 = 4; t = 0: 0.5 * 4 - 1 + 0.5 * 4 = 3.
    nan = float("nan")
    found = generalized_advantages(
        vector(0, nan, 8),
        vector(1, nan, 4),
        vector(1, 0, 1),
        torch.zeros(3, dtype=torch.int64),
        gamma=0.5,
        gae_lambda=1.0,
    )
    assert found.advantages_C.tolist() == [3.0, 0.0, 4.0]
    assert found.returns_C.tolist() == [4.0, 0.0, 8.0]


def test_the_reward_comes_at_the_last_sampled_token_less_the_kl_of_each() -> None:
    # Sequence 0: tokens 0-2, the last a tool's; sequence 1: token 3. KL 1, 2, 7, 3 at beta 0.1.
    mask, sequence = vector(1, 1, 0, 1), torch.tensor([0, 0, 0, 1])
    found = token_rewards(vector(5, 9), mask, sequence, kl_C=vector(1, 2, 7, 3), kl_coefficient=0.1)
    assert last_sampled(mask, sequence).tolist() == [0, 1, 0, 1]
    assert found.tolist() == pytest.approx([-0.1, 4.8, 0.0, 8.7])


def test_returns_with_the_kl_in_the_reward_meet_a_table() -> None:
    # K1: 0.2 - 0.1 = old - reference at both tokens of one sequence, beta 0.5, gamma = lambda = 1:
    # rewards -0.05 and 1 - 0.05; returns 0.9 and 0.95; values 0.5, 0.25: advantages 0.4 and 0.7.
    tokens = SampledTokens(
        rewards_B=vector(1),
        values_C=vector(0.5, 0.25),
        old_logprobs_C=vector(-1.0, -2.0),
        reference_logprobs_C=vector(-1.1, -2.1),
        mask_C=vector(1, 1),
        sequence_C=torch.zeros(2, dtype=torch.int64),
    )
    found = ppo_returns(tokens, ReturnSettings(gae_lambda=1.0), kl_coefficient=0.5)
    assert found.returns_C.tolist() == pytest.approx([0.9, 0.95])
    assert found.advantages_C.tolist() == pytest.approx([0.4, 0.7])
    assert answer_kl(tokens).tolist() == pytest.approx([0.2])
    without = ppo_returns(tokens, ReturnSettings(gae_lambda=1.0, reward_kl=None), 0.5)
    assert without.returns_C.tolist() == [1.0, 1.0]


def test_the_clipped_value_loss_meets_a_table() -> None:
    #   v    v_old  R    (v-R)^2  clip(v, v_old +- 0.2)  (clip - R)^2  0.5 max  clipped
    #   1.0  0.0    0.0  1.00     0.2                    0.04          0.500    no
    #   1.0  0.0    1.0  0.00     0.2                    0.64          0.320    yes
    #   0.1  0.0    1.0  0.81     0.1                    0.81          0.405    no (equal)
    found = clipped_value_loss(vector(1, 1, 0.1), vector(0, 0, 0), vector(0, 1, 1), clip=0.2)
    assert found.losses_C.tolist() == pytest.approx([0.5, 0.32, 0.405])
    assert found.clipped_C.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * (1 + 0.1 * 256 / 1000)),  # 10 % above
        (60.0, 0.1 * (1 + 0.2 * 256 / 1000)),  # far above: 20 % is the most
        (0.0, 0.1 * (1 - 0.2 * 256 / 1000)),
    ],
)
def test_an_adaptive_coefficient_follows_ziegler(kl, expected) -> None:
    target = KlTarget(kl=6.0, horizon=1000)
    assert next_kl_coefficient(0.1, target, kl=kl, num_samples=256) == pytest.approx(expected)
    assert next_kl_coefficient(0.1, None, kl=kl, num_samples=256) == 0.1


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one() -> None:
    returns = vector(1, 2, 3)
    assert explained_variance(returns + 5, returns) == 1
    assert explained_variance(vector(7, 7, 7), returns) == 0
    assert explained_variance(returns, vector(2, 2, 2)) is None

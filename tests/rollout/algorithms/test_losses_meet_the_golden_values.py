"""Values of rl-frameworks 8.3, met by verl 0.9.1, TRL 1.16 and OpenRLHF 0.11 on the same inputs.

Inputs: B = 4, T = 5, lengths 5, 3, 4, 1; for sequence i and token t, from 0:
    old  = -1 - 0.1 ((7i + 3t) mod 5)            logprob = old + 0.1 (((5i + 11t) mod 9) - 4)
    ref  = old - 0.05 ((3i + 2t) mod 4)          actor   = old + 0.02 (((2i + 5t) mod 7) - 3)
    A    = [1, -0.5, 2, -1.5]
"""

from __future__ import annotations

import pytest
import torch

from rollout.algorithms.advantages import group_advantages
from rollout.algorithms.aggregation import Denominators, aggregate, token_weights
from rollout.algorithms.clip import Clipped
from rollout.algorithms.grpo import GrpoSettings, PolicyTokens, grpo_loss
from rollout.algorithms.importance import Correction
from rollout.algorithms.kl import kl_estimate

B, T, LENGTHS = 4, 5, (5, 3, 4, 1)


def grid(value) -> torch.Tensor:
    """Sequence after sequence, without padding."""
    places = [(i, t) for i in range(B) for t in range(LENGTHS[i])]
    return torch.tensor([float(value(i, t)) for i, t in places], dtype=torch.float64)


MASK = grid(lambda i, t: 1)
SEQUENCE = grid(lambda i, t: i).long()
WHOLE = Denominators(num_tokens=sum(LENGTHS), num_sequences=B, width=T)
OLD = grid(lambda i, t: -1 - 0.1 * ((7 * i + 3 * t) % 5))
LOGPROBS = OLD + grid(lambda i, t: 0.1 * (((5 * i + 11 * t) % 9) - 4))
REFERENCE = OLD - grid(lambda i, t: 0.05 * ((3 * i + 2 * t) % 4))
ACTOR = OLD + grid(lambda i, t: 0.02 * (((2 * i + 5 * t) % 7) - 3))
ADVANTAGES = grid(lambda i, t: [1, -0.5, 2, -1.5][i])


def loss(logprobs=LOGPROBS, reference=None, **settings) -> float:
    tokens = PolicyTokens(
        logprobs_C=logprobs,
        old_logprobs_C=OLD,
        actor_logprobs_C=ACTOR,
        advantages_C=ADVANTAGES,
        sequence_C=SEQUENCE,
        mask_C=MASK,
        reference_logprobs_C=reference,
    )
    return float(grpo_loss(tokens, GrpoSettings(**settings), WHOLE).loss)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"aggregation": "TokenMean"}, -0.717776),
        ({"aggregation": "SequenceMean"}, -0.144654),
        ({"aggregation": "SequenceSum"}, -2.332771),
        ({"aggregation": "FixedLength"}, -0.466554),
        ({"surrogate": Clipped(low=0.2, high=0.28)}, -0.737884),
        ({"correction": Correction(high=2.0)}, -0.726061),
    ],
)
def test_the_clipped_loss_meets_the_golden_value(settings, expected) -> None:
    assert loss(**settings) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("dual_clip", "expected"), [(None, -0.357690), (3.0, -0.370002)])
def test_ratios_four_times_as_far_meet_the_golden_value(dual_clip, expected) -> None:
    value = loss(OLD + 4 * (LOGPROBS - OLD), surrogate=Clipped(dual=dual_clip))
    assert value == pytest.approx(expected, abs=1e-6)


def test_the_reference_term_meets_the_golden_value() -> None:
    value = loss(reference=REFERENCE, kl_coefficient=0.04, kl_estimator="K3")
    assert value == pytest.approx(-0.716420, abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "expected"), [("K1", 0.076923), ("K2", 0.035), ("K3", 0.033890)]
)
def test_each_kl_estimator_meets_the_golden_value(estimator, expected) -> None:
    weights = token_weights("TokenMean", MASK, SEQUENCE, WHOLE)
    value = aggregate(kl_estimate(LOGPROBS, REFERENCE, estimator), weights)
    assert float(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("Group", [1.305580, -0.783348, 0.261116, -0.783348]),
        ("None", [0.625, -0.375, 0.125, -0.375]),
    ],
)
def test_group_advantages_meet_the_golden_values(scale, expected) -> None:
    rewards = torch.tensor([[1, 0, 0.5, 0]], dtype=torch.float64)
    advantages = group_advantages(rewards, torch.ones_like(rewards), scale).advantages_PG
    assert advantages[0].tolist() == pytest.approx(expected, abs=2e-6)

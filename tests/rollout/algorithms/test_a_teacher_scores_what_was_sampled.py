"""On-policy distillation: a table by hand, the reverse KL's gradient by finite differences, properties."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.distillation import distil
from rollout.algorithms.grpo import GrpoSettings, PolicyTokens, grpo_loss

WIDTH = 3
"""Tokens of the tiny vocabulary."""


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("discount", "coefficient", "expected"),
    [
        # kl is +1, (masked), -2, +0.5 in the first answer and +3 in the second.
        (0.0, 1.0, (-1.0, 0.0, 2.0, -0.5, -3.0)),
        (0.0, 2.0, (-2.0, 0.0, 4.0, -1.0, -6.0)),
        (1.0, 1.0, (0.5, 0.0, 1.5, -0.5, -3.0)),
        # Half of what follows: 2 - 0.25 = 1.75, then -1 + 0.875; the masked token is no step.
        (0.5, 1.0, (-0.125, 0.0, 1.75, -0.5, -3.0)),
    ],
)
def test_a_table_by_hand(discount, coefficient, expected) -> None:
    policy, teacher = doubles(-1, -9, -3, -1, -1), doubles(-2, math.nan, -1, -1.5, -4)
    found = distil(
        policy,
        teacher,
        doubles(1, 0, 1, 1, 1),
        torch.tensor([0, 0, 0, 0, 1]),
        coefficient=coefficient,
        discount=discount,
    )
    assert found.kl_C.tolist() == [1, 0, -2, 0.5, 3]
    assert found.advantages_C.tolist() == pytest.approx(expected)


def joint(logits: torch.Tensor, first: int, second: int) -> torch.Tensor:
    """Logprobs of an answer's two tokens under a policy that is two tables of logits."""
    opening = torch.log_softmax(logits[0], -1)[first]
    return torch.stack([opening, torch.log_softmax(logits[1 + first], -1)[second]])


def expected_gradient(policy: torch.Tensor, teacher: torch.Tensor, discount: float) -> torch.Tensor:
    """The loss's gradient over all answers of two tokens, each as often as the policy gives it."""
    leaf = policy.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for first, second in itertools.product(range(WIDTH), repeat=2):
        logprobs, scored = joint(leaf, first, second), joint(teacher, first, second)
        mask, sequence = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
        taught = distil(logprobs, scored, mask, sequence, discount=discount)
        tokens = PolicyTokens(
            logprobs_C=logprobs,
            old_logprobs_C=logprobs.detach(),
            actor_logprobs_C=logprobs.detach(),
            advantages_C=taught.advantages_C,
            mask_C=mask,
            sequence_C=sequence,
        )
        whole = Denominators(num_tokens=2, num_sequences=1, width=2)
        loss = grpo_loss(tokens, GrpoSettings(aggregation="SequenceSum"), whole).loss
        total = total + logprobs.sum().exp().detach() * loss
    total.backward()
    assert leaf.grad is not None
    return leaf.grad


def answer_kl(policy: torch.Tensor, teacher: torch.Tensor) -> float:
    """KL(policy || teacher) of whole answers."""
    pairs = [
        (joint(policy, *answer).sum(), joint(teacher, *answer).sum())
        for answer in itertools.product(range(WIDTH), repeat=2)
    ]
    return float(sum(own.exp() * (own - other) for own, other in pairs))


def token_kl(policy: torch.Tensor, teacher: torch.Tensor, weights: torch.Tensor) -> float:
    """The KL of each place's next token, weighed by how often the place is met; weights stand still."""
    own, other = torch.log_softmax(policy, -1), torch.log_softmax(teacher, -1)
    return float((weights * (own.exp() * (own - other)).sum(-1)).sum())


def differences(value, at: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    found = torch.zeros_like(at)
    for index in itertools.product(*map(range, at.shape)):
        up, down = at.clone(), at.clone()
        up[index] += step
        down[index] -= step
        found[index] = (value(up) - value(down)) / (2 * step)
    return found


@pytest.fixture
def tables() -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(3)
    shape = (1 + WIDTH, WIDTH)
    policy, teacher = (torch.randn(shape, generator=noise, dtype=torch.float64) for _ in range(2))
    return policy, teacher


def test_with_discount_one_the_gradient_is_that_of_whole_answers_kl(tables) -> None:
    policy, teacher = tables
    wanted = differences(lambda at: answer_kl(at, teacher), policy)
    assert torch.allclose(expected_gradient(policy, teacher, 1.0), wanted, atol=1e-8)


def test_with_discount_zero_the_gradient_is_that_of_each_tokens_kl(tables) -> None:
    policy, teacher = tables
    weights = torch.cat([doubles(1), torch.softmax(policy[0], -1)])
    wanted = differences(lambda at: token_kl(at, teacher, weights), policy)
    assert torch.allclose(expected_gradient(policy, teacher, 0.0), wanted, atol=1e-8)


@given(
    st.lists(st.floats(-20, 0), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_a_teacher_that_is_the_policy_teaches_nothing(logprobs, discount) -> None:
    values = doubles(*logprobs)
    sequence = torch.arange(len(logprobs)) // 3
    found = distil(values, values, torch.ones_like(values), sequence, discount=discount)
    assert found.advantages_C.abs().max() == 0
    assert found.kl_C.abs().max() == 0


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]))
def test_packing_and_masked_tokens_change_nothing(seed, discount) -> None:
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (4,), generator=noise)
    sequence = torch.arange(4).repeat_interleave(lengths)
    policy, teacher = (-torch.rand(2, len(sequence), generator=noise, dtype=torch.float64)).unbind()
    mask = (torch.rand(len(sequence), generator=noise) < 0.7).double()
    found = distil(policy, teacher, mask, sequence, discount=discount)
    for one in range(4):
        here = sequence == one
        kept = here & (mask > 0)
        alone = distil(
            policy[kept], teacher[kept], mask[kept], sequence[kept] * 0, discount=discount
        )
        assert torch.equal(found.advantages_C[kept], alone.advantages_C)
        assert found.advantages_C[here & (mask == 0)].abs().sum() == 0
        assert found.kl_C[here & (mask == 0)].abs().sum() == 0


def test_advantages_carry_no_gradient() -> None:
    policy = doubles(-1, -2).requires_grad_()
    found = distil(policy, doubles(-2, -1), doubles(1, 1), torch.tensor([0, 0]), discount=1.0)
    assert not found.advantages_C.requires_grad

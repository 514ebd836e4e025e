"""GAE and the critic's loss under any input: masks, packing, padding, signs, gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout.algorithms.advantages.gae import Gae, generalized_advantages
from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.kl_controller import KlTarget, next_kl_coefficient
from rollout.algorithms.ppo import ValueSettings, ValueTokens, ppo_value_loss
from rollout.algorithms.value_loss import clipped_value_loss

reals = st.floats(-10, 10, width=32)
token = st.tuples(reals, reals, st.integers(0, 1))
batches = st.lists(st.lists(token, min_size=1, max_size=6), min_size=1, max_size=4)
rates = st.floats(0.125, 1, width=32)


def packed(batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = [row for sequence in batch for row in sequence]
    columns = torch.tensor(rows, dtype=torch.float64).T
    lengths = torch.tensor([len(sequence) for sequence in batch])
    sequence_C = torch.arange(len(batch)).repeat_interleave(lengths)
    return columns[0], columns[1], columns[2], sequence_C


def gae(batch, gamma=1.0, gae_lambda=0.95, bootstrap=None) -> Gae:
    rewards, values, mask, sequence = packed(batch)
    return generalized_advantages(
        rewards, values, mask, sequence, gamma=gamma, gae_lambda=gae_lambda, bootstrap_B=bootstrap
    )


def plain(sequence, gamma, gae_lambda) -> list[float]:
    """The definition, token by token, on the sampled tokens alone."""
    found, advantage, following = [], 0.0, 0.0
    for reward, value, mask in reversed(sequence):
        if mask:
            advantage = reward + gamma * following - value + gamma * gae_lambda * advantage
            following = value
        found.append(advantage if mask else 0.0)
    return found[::-1]


@given(batches, rates, rates)
def test_gae_is_its_definition(batch, gamma, gae_lambda) -> None:
    expected = [a for sequence in batch for a in plain(sequence, gamma, gae_lambda)]
    assert gae(batch, gamma, gae_lambda).advantages_C.tolist() == pytest.approx(expected, abs=1e-9)


@given(batches)
def test_without_discounts_it_is_the_rewards_to_come_less_the_value(batch) -> None:
    found = gae(batch, 1.0, 1.0)
    rewards, values, mask, sequence = packed(batch)
    for i in range(len(rewards)):
        later = (torch.arange(len(rewards)) >= i) & (sequence == sequence[i]) & (mask > 0)
        expected = float(rewards[later].sum() - values[i]) if mask[i] else 0.0
        assert float(found.advantages_C[i]) == pytest.approx(expected, abs=1e-6)


@given(batches, rates, rates)
def test_tool_tokens_may_as_well_not_be_there(batch, gamma, gae_lambda) -> None:
    bare = [[t for t in sequence if t[2]] for sequence in batch]
    kept = [sequence for sequence in bare if sequence]
    _, _, mask, _ = packed(batch)
    found = gae(batch, gamma, gae_lambda)
    if kept:
        without = gae(kept, gamma, gae_lambda)
        assert torch.equal(found.advantages_C[mask > 0], without.advantages_C)
        assert torch.equal(found.returns_C[mask > 0], without.returns_C)
    assert not found.advantages_C[mask == 0].any()


@given(batches, rates, rates)
def test_a_sequences_advantages_do_not_depend_on_its_neighbours(batch, gamma, gae_lambda) -> None:
    together = gae(batch, gamma, gae_lambda).advantages_C
    alone = [gae([sequence], gamma, gae_lambda).advantages_C for sequence in batch]
    assert torch.equal(together, torch.cat(alone))


@given(batches, rates, rates, reals)
def test_a_bootstrapped_end_is_a_value_that_follows(batch, gamma, gae_lambda, value) -> None:
    """Cutting a sequence and bootstrapping equals one more token that earns exactly its value."""
    longer = [[*sequence, (value, value, 1)] for sequence in batch]
    _, _, _, sequence = packed(longer)
    ends = torch.cat([sequence[1:] != sequence[:-1], torch.tensor([True])])
    bootstrap = torch.full((len(batch),), float(value), dtype=torch.float64)
    cut = gae(batch, gamma, gae_lambda, bootstrap).advantages_C
    whole = gae(longer, gamma, gae_lambda).advantages_C
    assert torch.allclose(cut, whole[~ends], atol=1e-9)


@given(batches, st.floats(0, 2, width=32))
def test_the_clipped_value_loss_is_never_below_the_plain_one(batch, clip) -> None:
    values, returns, _, _ = packed(batch)
    old = values.flip(0)
    plain_loss = clipped_value_loss(values, old, returns, clip=0)
    clipped = clipped_value_loss(values, old, returns, clip=float(clip))
    assert (clipped.losses_C >= plain_loss.losses_C - 1e-12).all()
    assert torch.allclose(plain_loss.losses_C, 0.5 * (values - returns) ** 2)


@given(batches)
def test_shares_of_micro_batches_add_up_and_masked_tokens_do_not_count(batch) -> None:
    values, returns, mask, sequence = packed(batch)
    counts = [sum(t[2] for t in s) for s in batch]
    whole = Denominators(num_tokens=sum(counts), num_sequences=sum(c > 0 for c in counts), width=6)

    def loss(chosen, settings, junk=0.0) -> float:
        tokens = ValueTokens(
            values_C=torch.where(mask > 0, values, junk)[chosen],
            old_values_C=(values * 0.5)[chosen],
            returns_C=torch.where(mask > 0, returns, junk)[chosen],
            mask_C=mask[chosen],
            sequence_C=sequence[chosen] - sequence[chosen].min(),
        )
        return float(ppo_value_loss(tokens, settings, whole).loss)

    for mode in ("TokenMean", "SequenceMean", "SequenceSum", "FixedLength"):
        settings = ValueSettings(aggregation=mode)
        together = loss(torch.ones_like(mask, dtype=torch.bool), settings, junk=float("nan"))
        parts = sum(loss(sequence == i, settings) for i in range(len(batch)))
        assert together == pytest.approx(parts, abs=1e-9)


def test_the_critics_gradient_is_that_of_finite_differences() -> None:
    draw = torch.Generator().manual_seed(3)
    values, old, returns = torch.randn(3, 12, generator=draw, dtype=torch.float64)
    mask = (torch.arange(12) % 4 > 0).double()
    sequence = torch.arange(12) // 5
    whole = Denominators(num_tokens=9, num_sequences=3, width=5)

    def loss(values_C: torch.Tensor) -> torch.Tensor:
        tokens = ValueTokens(
            values_C=values_C,
            old_values_C=old,
            returns_C=returns,
            mask_C=mask,
            sequence_C=sequence,
        )
        return ppo_value_loss(tokens, ValueSettings(clip=0.4), whole).loss

    assert torch.autograd.gradcheck(loss, values.requires_grad_())


@given(st.floats(-1, 100), st.integers(1, 1024))
def test_a_steered_coefficient_stays_positive_and_moves_towards_the_target(kl, samples) -> None:
    target = KlTarget(kl=6.0, horizon=1000)
    found = next_kl_coefficient(0.05, target, kl=kl, num_samples=samples)
    assert found > 0
    assert (found - 0.05) * (kl - 6.0) >= 0


def test_an_empty_batch_gives_nothing() -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    found = generalized_advantages(empty, empty, empty, empty.long())
    assert found.advantages_C.shape == (0,)

"""What must hold of every policy loss, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.algorithms.aggregation import Denominators, aggregate, token_weights
from rollout.algorithms.grpo import GrpoSettings, PolicyTokens, grpo_loss
from rollout.algorithms.kl import kl_estimate, kl_loss_estimate
from rollout.algorithms.sft import sft_loss
from rollout.algorithms.surrogates.clip import Clipped, clipped_policy_loss
from rollout.algorithms.surrogates.importance import Correction, importance_weights

MODES = ["TokenMean", "SequenceMean", "SequenceSum", "FixedLength"]
SEEDS = st.integers(0, 2**31)
COUNTS = ("sampled_C",)
"""Of samples of several sequences only; here each has one."""
PER_TOKEN = [
    name for name in PolicyTokens.__dataclass_fields__ if name.endswith("_C") and name not in COUNTS
]


def make_tokens(seed: int, B: int = 4, T: int = 5) -> PolicyTokens:
    """B sequences of 1..T tokens, about a quarter of them masked, never a whole sequence."""
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, T + 1, (B,), generator=noise)
    sequence = torch.arange(B).repeat_interleave(lengths)
    C = len(sequence)

    def draw(scale: float) -> torch.Tensor:
        return torch.randn(C, generator=noise, dtype=torch.float64) * scale

    mask = (torch.rand(C, generator=noise) > 0.25).double()
    mask[torch.cumsum(lengths, 0) - 1] = 1.0
    old = draw(0.5) - 2
    return PolicyTokens(
        logprobs_C=old + draw(0.3),
        old_logprobs_C=old,
        actor_logprobs_C=old + draw(0.1),
        advantages_C=torch.randn(B, generator=noise, dtype=torch.float64)[sequence],
        mask_C=mask,
        sequence_C=sequence,
        reference_logprobs_C=old + draw(0.2),
        entropy_C=draw(1.0).abs(),
    )


def count(tokens: PolicyTokens) -> Denominators:
    seen = tokens.sequence_C[tokens.mask_C > 0]
    return Denominators(
        num_tokens=int(tokens.mask_C.sum()), num_sequences=len(seen.unique()), width=5
    )


def select(tokens: PolicyTokens, index: torch.Tensor) -> PolicyTokens:
    return replace(tokens, **{name: getattr(tokens, name)[index] for name in PER_TOKEN})


def gradient(tokens: PolicyTokens, knobs: GrpoSettings) -> torch.Tensor:
    logprobs = tokens.logprobs_C.detach().requires_grad_()
    grpo_loss(replace(tokens, logprobs_C=logprobs), knobs, count(tokens)).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad


def full(mode: str = "TokenMean") -> GrpoSettings:
    return GrpoSettings(
        aggregation=mode,
        kl_coefficient=0.05,
        correction=Correction(high=1.05),
        surrogate=Clipped(high=0.28, dual=1.3),
        entropy_coefficient=0.01,
    )


@given(SEEDS)
def test_at_ratio_one_the_gradient_is_the_policy_gradient(seed) -> None:
    tokens = make_tokens(seed)
    tokens = replace(tokens, old_logprobs_C=tokens.logprobs_C, reference_logprobs_C=None)
    expected = -tokens.advantages_C * tokens.mask_C / tokens.mask_C.sum()
    assert torch.allclose(gradient(tokens, GrpoSettings()), expected, atol=1e-15)


@given(SEEDS, st.sampled_from(MODES))
def test_what_lies_under_the_mask_changes_nothing(seed, mode) -> None:
    tokens = make_tokens(seed)
    floats = [name for name in PER_TOKEN if name not in ("mask_C", "sequence_C")]
    spoilt = replace(
        tokens,
        **{
            name: torch.where(tokens.mask_C > 0, getattr(tokens, name), torch.nan)
            for name in floats
        },
    )
    assert torch.equal(gradient(tokens, full(mode)), gradient(spoilt, full(mode)))
    clean = grpo_loss(tokens, full(mode), count(tokens))
    dirty = grpo_loss(spoilt, full(mode), count(tokens))
    assert clean.sums == dirty.sums
    assert clean.maxima == dirty.maxima


@given(SEEDS, st.sampled_from(MODES))
def test_masked_tokens_may_as_well_be_absent(seed, mode) -> None:
    tokens = make_tokens(seed)
    kept = tokens.mask_C > 0
    without = gradient(select(tokens, kept), full(mode))
    assert torch.allclose(gradient(tokens, full(mode))[kept], without, atol=1e-15)


@given(SEEDS, st.sampled_from(MODES), st.permutations(range(4)))
def test_permuting_sequences_permutes_the_gradient(seed, mode, order) -> None:
    tokens = make_tokens(seed)
    index = torch.cat([torch.nonzero(tokens.sequence_C == b)[:, 0] for b in order])
    moved = gradient(select(tokens, index), full(mode))
    assert torch.allclose(gradient(tokens, full(mode))[index], moved, atol=1e-15)


@given(SEEDS, st.sampled_from(MODES), st.integers(1, 3))
def test_micro_batches_of_any_cut_add_up_to_the_whole(seed, mode, cut) -> None:
    tokens = make_tokens(seed)
    first = tokens.sequence_C < cut
    total = sum(
        grpo_loss(select(tokens, part), full(mode), count(tokens)).loss for part in (first, ~first)
    )
    whole = grpo_loss(tokens, full(mode), count(tokens)).loss
    assert float(total) == pytest.approx(float(whole))


@given(SEEDS, st.sampled_from(["TokenMean", "SequenceMean"]))
def test_the_weights_of_a_mean_sum_to_one(seed, mode) -> None:
    tokens = make_tokens(seed)
    weights = token_weights(mode, tokens.mask_C, tokens.sequence_C, count(tokens))
    assert float(weights.sum()) == pytest.approx(1)
    assert float(aggregate(torch.full_like(weights, 7.0), weights)) == pytest.approx(7)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # sequences of 2 and 1 tokens (one more masked): 3 tokens, 2 sequences, width 5
        ("TokenMean", [1 / 3, 0, 1 / 3, 1 / 3]),
        ("SequenceMean", [1 / 4, 0, 1 / 4, 1 / 2]),
        ("SequenceSum", [1 / 2, 0, 1 / 2, 1 / 2]),
        ("FixedLength", [1 / 10, 0, 1 / 10, 1 / 10]),
    ],
)
def test_each_mode_weighs_tokens_as_its_table_says(mode, expected) -> None:
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
    whole = Denominators(num_tokens=3, num_sequences=2, width=5)
    weights = token_weights(mode, mask, torch.tensor([0, 0, 0, 1]), whole)
    assert weights.tolist() == pytest.approx(expected)


@given(SEEDS)
def test_k3_is_never_negative_and_zero_at_equality(seed) -> None:
    tokens = make_tokens(seed)
    assert (kl_estimate(tokens.logprobs_C, tokens.old_logprobs_C, "K3") >= 0).all()
    assert (kl_estimate(tokens.logprobs_C, tokens.logprobs_C, "K3") == 0).all()
    for shaped in ("K3Plus", "K3Corrected"):
        logprobs, old = tokens.logprobs_C, tokens.old_logprobs_C
        assert (kl_loss_estimate(logprobs, old, tokens.actor_logprobs_C, shaped) >= 0).all()
        assert (kl_loss_estimate(logprobs, old, logprobs, shaped) == 0).all()


def test_extreme_log_ratios_stay_finite_in_float32() -> None:
    far = torch.tensor([-1e6, 1e6])
    loss = clipped_policy_loss(far, torch.zeros(2), torch.ones(2))
    assert loss.losses_C.isfinite().all()
    assert kl_estimate(far, torch.zeros(2), "K3").isfinite().all()


def test_each_bound_is_counted_only_where_it_binds() -> None:
    ratios = torch.tensor([0.5, 1.5, 0.5, 1.5])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss = clipped_policy_loss(ratios.log(), torch.zeros(4), advantages)
    assert loss.clipped_high_C.tolist() == [False, True, False, False]
    assert loss.clipped_low_C.tolist() == [False, False, True, False]


def test_importance_weights_are_cut_at_the_cap_and_carry_no_gradient() -> None:
    # exp(log 3) = 3 -> 2 (truncated); exp(log 0.5) = 0.5 stays: truncation has no lower bound
    old = torch.tensor([3.0, 0.5]).log().requires_grad_()
    weights = importance_weights(
        Correction(high=2.0), old, torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.int64)
    )
    assert weights.weights_C.tolist() == [2.0, pytest.approx(0.5)]
    assert weights.truncated_C.tolist() == [True, False]
    assert not weights.weights_C.requires_grad


@given(SEEDS)
def test_importance_weights_do_not_touch_the_reference_term(seed) -> None:
    tokens = make_tokens(seed)
    tokens = replace(tokens, advantages_C=torch.zeros_like(tokens.advantages_C))
    plain = gradient(tokens, GrpoSettings(kl_coefficient=0.5))
    corrected = gradient(tokens, GrpoSettings(kl_coefficient=0.5, correction=Correction(high=1.1)))
    assert torch.equal(plain, corrected)


@settings(max_examples=10)
@given(SEEDS, st.sampled_from(MODES), st.sampled_from(["K1", "K2", "K3", "K3Corrected"]))
def test_the_gradient_equals_finite_differences(seed, mode, estimator) -> None:
    tokens = make_tokens(seed, B=2, T=3)
    # Detached importance weights do not follow old_logprobs, which are inputs here: exact all the same.
    knobs = replace(full(mode), kl_estimator=estimator)

    def loss(logprobs):
        return grpo_loss(replace(tokens, logprobs_C=logprobs), knobs, count(tokens)).loss

    assert torch.autograd.gradcheck(loss, tokens.logprobs_C.clone().requires_grad_(), eps=1e-7)


@given(SEEDS, st.sampled_from(MODES))
def test_k3_plus_has_the_gradient_of_k2(seed, mode) -> None:
    # K2's own is met by finite differences above; the value stays that of K3.
    tokens = make_tokens(seed)
    k2, k3, plus = (replace(full(mode), kl_estimator=name) for name in ("K2", "K3", "K3Plus"))
    assert torch.allclose(gradient(tokens, plus), gradient(tokens, k2), atol=1e-15)
    values = [float(grpo_loss(tokens, knobs, count(tokens)).loss) for knobs in (plus, k3)]
    assert values[0] == pytest.approx(values[1], abs=1e-14)


def test_the_entropy_bonus_pushes_entropy_up() -> None:
    tokens = make_tokens(5)
    entropy = torch.ones_like(tokens.mask_C).requires_grad_()
    knobs = GrpoSettings(entropy_coefficient=0.5)
    grpo_loss(replace(tokens, entropy_C=entropy), knobs, count(tokens)).loss.backward()
    assert torch.allclose(entropy.grad, -0.5 * tokens.mask_C / tokens.mask_C.sum())


def test_sft_is_the_mean_over_the_tokens_to_learn() -> None:
    # two of four tokens count: -(-1 - 3) / 2 = 2
    loss = sft_loss(torch.tensor([-1.0, -2.0, -3.0, torch.nan]), torch.tensor([1, 0, 1, 0]), 2)
    assert float(loss) == 2.0


@given(SEEDS)
def test_sft_gradient_equals_finite_differences(seed) -> None:
    tokens = make_tokens(seed, B=2, T=3)
    assert torch.autograd.gradcheck(
        lambda logprobs: sft_loss(logprobs, tokens.mask_C, 7),
        tokens.logprobs_C.clone().requires_grad_(),
    )


@given(SEEDS)
def test_the_gradient_of_smoothed_sft_equals_finite_differences(seed) -> None:
    noise = torch.Generator().manual_seed(seed)
    logits_CV = torch.randn(5, 4, generator=noise, dtype=torch.float64)
    targets, mask = torch.arange(5) % 4, torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]).double()

    def loss(logits_CV: torch.Tensor) -> torch.Tensor:
        logprobs_CV = logits_CV.log_softmax(-1)
        chosen_C = logprobs_CV.gather(1, targets[:, None])[:, 0]
        means_C = logprobs_CV.mean(-1)
        return sft_loss(chosen_C, mask, 4, mean_logprobs_C=means_C, label_smoothing=0.2)

    assert torch.autograd.gradcheck(loss, logits_CV.requires_grad_())

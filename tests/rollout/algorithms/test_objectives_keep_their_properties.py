"""What must hold of every objective of the GRPO family, at every ratio level, with every correction."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.grpo import GrpoSettings, PolicyTokens, grpo_loss
from rollout.algorithms.sequences import mean_by_sequence, sum_by_sequence
from rollout.algorithms.surrogates import cispo
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped
from rollout.algorithms.surrogates.dppo import Dppo
from rollout.algorithms.surrogates.gmpo import Gmpo
from rollout.algorithms.surrogates.importance import Correction
from rollout.algorithms.surrogates.sapo import Sapo
from rollout.algorithms.surrogates.vespo import Vespo

SEEDS = st.integers(0, 2**31)
OBJECTIVES = {
    "clipped": GrpoSettings(surrogate=Clipped(high=0.28, dual=1.5)),
    "gspo": GrpoSettings(ratio="Sequence", aggregation="SequenceMean"),
    "rloo": GrpoSettings(ratio="SequenceProduct", aggregation="SequenceMean"),
    "luspo": GrpoSettings(ratio="Sequence", aggregation="SequenceSum"),
    "cispo": GrpoSettings(surrogate=Cispo(ratio_max=1.1)),
    "cispo of sequences": GrpoSettings(
        surrogate=cispo.relative(clip_low=0.1, clip_high=0.1),
        ratio="Sequence",
        aggregation="SequenceMean",
    ),
    "sapo": GrpoSettings(surrogate=Sapo(), aggregation="SequenceMean"),
    "gmpo": GrpoSettings(surrogate=Gmpo(log_clip_high=0.2), aggregation="SequenceMean"),
    "vespo": GrpoSettings(surrogate=Vespo()),
    "dppo": GrpoSettings(surrogate=Dppo(mask_low=0.02, mask_high=0.02, drift_coefficient=0.1)),
}
CORRECTIONS = {
    "none": None,
    "token truncated": Correction(high=1.05),
    "token masked": Correction(low=0.9, high=1.1, masks=True),
    "sequence truncated": Correction(level="Sequence", high=1.05),
    "sequence masked": Correction(level="Sequence", low=0.8, high=1.2, masks=True),
}
COUNTS = ("sampled_C",)
"""Of samples of several sequences only; here each has one."""
PER_TOKEN = [
    name for name in PolicyTokens.__dataclass_fields__ if name.endswith("_C") and name not in COUNTS
]
OBJECTIVE = st.sampled_from(sorted(OBJECTIVES))
CORRECTION = st.sampled_from(sorted(CORRECTIONS))


def make_tokens(seed: int, B: int = 4, T: int = 5) -> PolicyTokens:
    """B sequences of 1..T tokens, about a quarter of them masked, never a whole sequence."""
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, T + 1, (B,), generator=noise)
    sequence = torch.arange(B).repeat_interleave(lengths)

    def draw(scale: float) -> torch.Tensor:
        return torch.randn(len(sequence), generator=noise, dtype=torch.float64) * scale

    mask = (torch.rand(len(sequence), generator=noise) > 0.25).double()
    mask[torch.cumsum(lengths, 0) - 1] = 1.0
    old = draw(0.5) - 2
    return PolicyTokens(
        logprobs_C=old + draw(0.2),
        old_logprobs_C=old,
        actor_logprobs_C=old + draw(0.1),
        advantages_C=torch.randn(B, generator=noise, dtype=torch.float64)[sequence],
        mask_C=mask,
        sequence_C=sequence,
        reference_logprobs_C=old + draw(0.2),
        entropy_C=draw(1.0).abs(),
    )


def settings_for(objective: str, correction: str) -> GrpoSettings:
    return replace(
        OBJECTIVES[objective],
        correction=CORRECTIONS[correction],
        kl_coefficient=0.05,
        kl_estimator="K3Corrected",
        entropy_coefficient=0.01,
    )


def count(tokens: PolicyTokens) -> Denominators:
    seen = tokens.sequence_C[tokens.mask_C > 0]
    return Denominators(
        num_tokens=int(tokens.mask_C.sum()), num_sequences=len(seen.unique()), width=5
    )


def select(tokens: PolicyTokens, index: torch.Tensor) -> PolicyTokens:
    return replace(tokens, **{name: getattr(tokens, name)[index] for name in PER_TOKEN})


def gradient(tokens: PolicyTokens, knobs: GrpoSettings, whole=None) -> torch.Tensor:
    logprobs = tokens.logprobs_C.detach().requires_grad_()
    whole = whole or count(tokens)
    grpo_loss(replace(tokens, logprobs_C=logprobs), knobs, whole).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad


@pytest.mark.parametrize("name", OBJECTIVES)
@given(SEEDS)
def test_at_ratio_one_every_objective_is_the_policy_gradient(name, seed) -> None:
    knobs = OBJECTIVES[name]
    tokens = make_tokens(seed)
    tokens = replace(tokens, old_logprobs_C=tokens.logprobs_C, reference_logprobs_C=None)
    mask, whole = tokens.mask_C, count(tokens)
    length = sum_by_sequence(mask, tokens.sequence_C)[tokens.sequence_C]
    weights = {
        "TokenMean": 1 / whole.num_tokens,
        "SequenceMean": 1 / (length * whole.num_sequences),
        "SequenceSum": 1 / whole.num_sequences,
    }[knobs.aggregation]
    if knobs.ratio == "SequenceProduct":
        weights = weights * length  # the gradient of a product is the sum over its tokens
    expected = -tokens.advantages_C * mask * weights
    assert torch.allclose(gradient(tokens, knobs), expected, atol=1e-15)


@given(SEEDS, OBJECTIVE, CORRECTION)
def test_what_lies_under_the_mask_changes_nothing(seed, objective, correction) -> None:
    tokens, knobs = make_tokens(seed), settings_for(objective, correction)
    floats = [name for name in PER_TOKEN if name not in ("mask_C", "sequence_C")]
    spoilt = replace(
        tokens,
        **{
            name: torch.where(tokens.mask_C > 0, getattr(tokens, name), torch.nan)
            for name in floats
        },
    )
    assert torch.equal(gradient(tokens, knobs), gradient(spoilt, knobs))
    clean = grpo_loss(tokens, knobs, count(tokens))
    dirty = grpo_loss(spoilt, knobs, count(tokens))
    assert clean.sums == dirty.sums
    assert clean.maxima == dirty.maxima


@given(SEEDS, OBJECTIVE, CORRECTION)
def test_masked_tokens_may_as_well_be_absent(seed, objective, correction) -> None:
    tokens, knobs = make_tokens(seed), settings_for(objective, correction)
    kept = tokens.mask_C > 0
    without = gradient(select(tokens, kept), knobs)
    assert torch.allclose(gradient(tokens, knobs)[kept], without, atol=1e-14)


@given(SEEDS, OBJECTIVE, CORRECTION, st.permutations(range(4)))
def test_permuting_sequences_permutes_the_gradient(seed, objective, correction, order) -> None:
    tokens, knobs = make_tokens(seed), settings_for(objective, correction)
    index = torch.cat([torch.nonzero(tokens.sequence_C == b)[:, 0] for b in order])
    moved = gradient(select(tokens, index), knobs)
    assert torch.allclose(gradient(tokens, knobs)[index], moved, atol=1e-14)


@given(SEEDS, OBJECTIVE, CORRECTION, st.integers(1, 3))
def test_micro_batches_of_any_cut_add_up_to_the_whole(seed, objective, correction, cut) -> None:
    tokens, knobs = make_tokens(seed), settings_for(objective, correction)
    first, whole = tokens.sequence_C < cut, count(tokens)
    apart = torch.zeros_like(tokens.logprobs_C)
    for part in (first, ~first):
        apart[part] = gradient(select(tokens, part), knobs, whole)
    assert torch.allclose(gradient(tokens, knobs), apart, atol=1e-14)


SMOOTH = ["clipped", "rloo", "sapo", "gmpo", "dppo"]
"""Objectives whose gradient is the derivative of their value: nothing in them is detached."""


@settings(max_examples=10)
@given(SEEDS, st.sampled_from(SMOOTH), CORRECTION)
def test_the_gradient_equals_finite_differences(seed, objective, correction) -> None:
    tokens = make_tokens(seed, B=2, T=3)
    knobs = settings_for(objective, correction)

    def loss(logprobs):
        return grpo_loss(replace(tokens, logprobs_C=logprobs), knobs, count(tokens)).loss

    assert torch.autograd.gradcheck(loss, tokens.logprobs_C.clone().requires_grad_(), eps=1e-7)


WHOLE_COMPLETION = ["gspo", "luspo"]
"""Their ratio is one number for a completion: the gradient is the value's when its weight is one too."""


@settings(max_examples=10)
@given(
    SEEDS,
    st.sampled_from(WHOLE_COMPLETION),
    st.sampled_from(["none", "sequence truncated", "sequence masked"]),
)
def test_the_gradient_of_whole_completions_equals_finite_differences(
    seed, objective, correction
) -> None:
    tokens = make_tokens(seed, B=2, T=3)
    knobs = settings_for(objective, correction)

    def loss(logprobs):
        return grpo_loss(replace(tokens, logprobs_C=logprobs), knobs, count(tokens)).loss

    assert torch.autograd.gradcheck(loss, tokens.logprobs_C.clone().requires_grad_(), eps=1e-7)


@given(SEEDS, st.sampled_from(["cispo", "cispo of sequences", "vespo"]), CORRECTION)
def test_with_its_weights_held_a_loss_is_linear_in_the_logprobs(
    seed, objective, correction
) -> None:
    # loss = sum(w * logprob) with w detached: its differences are w, and so must its gradient be.
    tokens = replace(make_tokens(seed), reference_logprobs_C=None, entropy_C=None)
    knobs = replace(settings_for(objective, correction), kl_coefficient=0.0)
    loss = grpo_loss(tokens, knobs, count(tokens)).loss
    linear = (gradient(tokens, knobs) * tokens.logprobs_C).sum()
    assert float(linear) == pytest.approx(float(loss), abs=1e-12)


@pytest.mark.parametrize("name", ["cispo", "vespo"])
@given(SEEDS)
def test_a_detached_weight_is_the_factor_of_the_policy_gradient(name, seed) -> None:
    # The loss is linear in logprob with the weight held: finite differences around the weight's place.
    tokens, knobs = make_tokens(seed), OBJECTIVES[name]
    tokens = replace(tokens, reference_logprobs_C=None)
    weight = _weight(name, tokens)
    expected = -weight * tokens.advantages_C * tokens.mask_C / tokens.mask_C.sum()
    assert torch.allclose(gradient(tokens, knobs), expected, atol=1e-14)


def _weight(name: str, tokens: PolicyTokens) -> torch.Tensor:
    logs = (tokens.logprobs_C - tokens.old_logprobs_C) * tokens.mask_C
    if name == "cispo":
        return logs.exp().clamp(max=1.1)
    ratio = sum_by_sequence(logs, tokens.sequence_C).exp()[tokens.sequence_C]
    up = tokens.advantages_C >= 0
    k, rate = torch.where(up, 2.0, 3.0), torch.where(up, 3.0, 2.0)
    return ratio**k * (rate * (1 - ratio)).exp()


@given(SEEDS)
def test_the_token_form_of_gspo_has_the_gradient_of_the_sequence_form(seed) -> None:
    tokens = replace(make_tokens(seed), reference_logprobs_C=None)
    logprobs = tokens.logprobs_C.clone().requires_grad_()
    mask, sequence = tokens.mask_C, tokens.sequence_C
    ratios_B = mean_by_sequence(logprobs - tokens.old_logprobs_C, mask, sequence).exp()
    advantages_B = mean_by_sequence(tokens.advantages_C, mask, sequence)
    losses_B = torch.maximum(-advantages_B * ratios_B, -advantages_B * ratios_B.clamp(0.8, 1.2))
    losses_B.mean().backward()
    assert torch.allclose(gradient(tokens, OBJECTIVES["gspo"]), logprobs.grad, atol=1e-14)


@given(SEEDS, st.sampled_from(["sequence truncated", "sequence masked"]))
def test_a_sequence_weight_is_one_number_for_a_completion(seed, correction) -> None:
    tokens = replace(make_tokens(seed), reference_logprobs_C=None)
    plain = gradient(tokens, GrpoSettings())
    weighed = gradient(tokens, GrpoSettings(correction=CORRECTIONS[correction]))
    logs = (tokens.old_logprobs_C - tokens.actor_logprobs_C) * tokens.mask_C
    ratios = sum_by_sequence(logs, tokens.sequence_C).exp()
    expected = ratios.clamp(max=1.05)
    if correction == "sequence masked":
        expected = torch.where((ratios < 0.8) | (ratios > 1.2), 0.0, ratios)
    assert torch.allclose(weighed, plain * expected[tokens.sequence_C], atol=1e-14)

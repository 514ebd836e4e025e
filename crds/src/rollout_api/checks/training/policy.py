"""The GRPO family: combinations that would train something else than what was meant, without a word.

Seen with the named presets laid under the manifest, so that a preset and a setting that do not fit
are told as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rollout_api.algorithm_presets import ALGORITHM_PRESETS
from rollout_api.checks.facts import Facts
from rollout_api.checks.training.effective import effective_train
from rollout_api.presets import preset_names
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.algorithms import Distill, Grpo, Ppo
from rollout_api.v1alpha1.training.train import Train

GRPO = "spec.train.algorithm.grpo"

Rule = Callable[[Train, Grpo], Iterator[Problem]]


def named_algorithm_fits(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A preset of the GRPO family beside another algorithm would set nothing of it."""
    if spec.train is None or spec.preset is None or spec.train.algorithm.grpo is not None:
        return
    for name in preset_names(spec.preset):
        if name in ALGORITHM_PRESETS:
            yield Problem(
                field="spec.preset",
                reason="PresetNotForAlgorithm",
                message=f"{name} sets grpo, and this run trains with {spec.train.algorithm.chosen}",
                fix="write algorithm: {grpo: {}}, or remove it from preset",
            )


def policy_settings_fit(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """All rules of the family on what manifest and presets say together."""
    train = effective_train(spec)
    grpo = train.algorithm.grpo if train else None
    if train is not None and grpo is not None:
        for rule in _RULES:
            yield from rule(train, grpo)


def sampling_settings_are_read(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Settings of reinforcement learning in a run that learns from rows."""
    train = spec.train
    if train is None or train.algorithm.is_online:
        return
    given = {
        "dynamicSampling": train.dynamic_sampling,
        "overlongPenalty": train.overlong_penalty,
        "importanceSampling": train.importance_sampling,
        "stragglers": train.stragglers,
    }
    for name, value in given.items():
        if value is not None:
            yield Problem(
                field=f"spec.train.{name}",
                reason="NotUsedByAlgorithm",
                message=f"{train.algorithm.chosen} samples nothing and reads no {name}",
                fix=f"remove {name}, or use grpo or ppo",
            )


def penalty_has_a_limit(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The soft penalty is measured from the token limit: it must be said, not guessed."""
    train = spec.train
    if train and train.overlong_penalty and train.sampling.max_new_tokens is None:
        yield Problem(
            field="spec.train.sampling.maxNewTokens",
            reason="MissingField",
            message="overlongPenalty counts back from maxNewTokens, which is not set",
            fix="set sampling: {maxNewTokens: ...}",
        )


def reference_is_read(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A reference that nothing compares with is a forgotten coefficient."""
    train = effective_train(spec)
    if train is None or train.reference is None or not train.algorithm.is_online:
        return
    algorithm = train.algorithm
    if algorithm.traits.reference == "KlCoefficient" and not algorithm.uses_reference:
        yield Problem(
            field="spec.train.reference",
            reason="NotUsedByAlgorithm",
            message="klCoefficient is 0, so that no reference is loaded",
            fix=f"set {train.algorithm.chosen}.klCoefficient, or remove reference",
        )


def clip_is_the_right_way_round(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A lower bound that is wider than the upper one is legal, and nearly always the two swapped."""
    train = effective_train(spec)
    settings = train.algorithm.value if train else None
    if train is None or not isinstance(settings, Ppo | Grpo | Distill):
        return
    if settings.clip_low > settings.clip_high:
        yield Problem(
            field=f"spec.train.algorithm.{train.algorithm.chosen}.clipLow",
            reason="UnusualClip",
            message=f"clipLow {settings.clip_low} is above clipHigh {settings.clip_high}",
            fix="use the same for both (PPO: 0.2), or clipHigh above clipLow (DAPO: 0.2 and 0.28)",
            severity=Severity.warning,
        )


def _group_has_siblings(train: Train, grpo: Grpo) -> Iterator[Problem]:
    if grpo.group_size > 1:
        return
    if grpo.advantage_baseline != "None":
        yield Problem(
            field=f"{GRPO}.groupSize",
            reason="GroupOfOne",
            message=f"advantageBaseline {grpo.advantage_baseline} compares a completion with its"
            " siblings: alone its advantage is always 0",
            fix="use groupSize 2 or more, or advantageBaseline: None with advantageScale: Whiten",
        )
    elif train.dynamic_sampling is not None:
        yield Problem(
            field="spec.train.dynamicSampling",
            reason="GroupOfOne",
            message="a group of one never has any variance: every group would be dropped",
            fix="use groupSize 2 or more, or remove dynamicSampling",
        )


def _scale_has_a_baseline(_: Train, grpo: Grpo) -> Iterator[Problem]:
    if grpo.advantage_baseline != "None":
        return
    if grpo.advantage_scale == "Group":
        yield Problem(
            field=f"{GRPO}.advantageScale",
            reason="ScaleNeedsBaseline",
            message="without a baseline, a group of equal rewards would be divided by almost nothing",
            fix="use advantageScale: Whiten (REINFORCE++), or a baseline",
        )
    elif grpo.advantage_scale == "None":
        yield Problem(
            field=f"{GRPO}.advantageBaseline",
            reason="NoBaseline",
            message="the reward itself is the advantage: where all rewards are positive, everything"
            " sampled becomes likelier",
            fix="use advantageScale: Whiten, or a baseline",
            severity=Severity.warning,
        )


_CANCELLING = {
    "Sequence": ("TokenMean", "FixedLength"),
    "SequenceProduct": ("TokenMean", "FixedLength", "SequenceSum"),
}


def _ratio_survives_aggregation(_: Train, grpo: Grpo) -> Iterator[Problem]:
    wrong = _CANCELLING.get(grpo.ratio, ())
    named = f"ratio {grpo.ratio}"
    if grpo.surrogate.gmpo is not None:
        wrong, named = ("TokenMean", "FixedLength", "SequenceSum"), "gmpo"
    if grpo.aggregation in wrong:
        yield Problem(
            field=f"{GRPO}.aggregation",
            reason="RatioCancelled",
            message=f"{named} weighs every completion once, and {grpo.aggregation} weighs it by its"
            " length again",
            fix="use aggregation: SequenceMean"
            + (" (or SequenceSum on purpose: LUSPO)" if named == "ratio Sequence" else ""),
        )


def _ratio_is_read(_: Train, grpo: Grpo) -> Iterator[Problem]:
    chosen = grpo.surrogate.chosen
    if grpo.ratio != "Token" and chosen in {"gmpo", "vespo", "dppo"}:
        yield Problem(
            field=f"{GRPO}.ratio",
            reason="NotUsedBySurrogate",
            message=f"{chosen} takes the ratios of tokens and does with them what it needs",
            fix="remove ratio",
        )


def _clip_is_read(_: Train, grpo: Grpo) -> Iterator[Problem]:
    if grpo.surrogate.clipped is not None:
        return
    fields = Grpo.model_fields
    for attribute in ("clip_low", "clip_high", "dual_clip"):
        if getattr(grpo, attribute) != fields[attribute].default:
            yield Problem(
                field=f"{GRPO}.{fields[attribute].alias}",
                reason="NotUsedBySurrogate",
                message=f"{grpo.surrogate.chosen} has bounds of its own and does not read"
                f" {fields[attribute].alias}",
                fix=f"remove it; see surrogate.{grpo.surrogate.chosen}",
            )
            return


def _cispo_bound_is_of_the_ratio(_: Train, grpo: Grpo) -> Iterator[Problem]:
    cispo = grpo.surrogate.cispo
    if cispo and cispo.absolute and cispo.absolute.ratio_max < 1:
        bound = cispo.absolute.ratio_max
        yield Problem(
            field=f"{GRPO}.surrogate.cispo.absolute.ratioMax",
            reason="BoundBelowOne",
            message=f"{bound} is a bound of the ratio itself: every token, on-policy ones too, would"
            f" be scaled down to {bound}",
            fix=f"use {1 + bound} for a distance of {bound}, or relative: {{clipHigh: '{bound}'}}",
        )


def _estimator_fits_placement(_: Train, grpo: Grpo) -> Iterator[Problem]:
    if grpo.kl_coefficient == 0:
        return
    if grpo.kl_placement != "Loss" and grpo.kl_estimator in {"K3Plus", "K3Corrected"}:
        yield Problem(
            field=f"{GRPO}.klEstimator",
            reason="EstimatorNeedsLoss",
            message=f"{grpo.kl_estimator} shapes a gradient, and a reward has none",
            fix="use K1 or K3, or klPlacement: Loss",
        )
    if grpo.kl_placement == "Loss" and grpo.kl_estimator == "K1":
        yield Problem(
            field=f"{GRPO}.klEstimator",
            reason="EstimatorWithoutGradient",
            message="the gradient of K1 is 0 in expectation: in the loss it only adds noise",
            fix="use K2, K3Plus or K3Corrected, or klPlacement: Reward",
            severity=Severity.warning,
        )


def _vespo_takes_token_weights(train: Train, grpo: Grpo) -> Iterator[Problem]:
    correction = train.importance_sampling
    if grpo.surrogate.vespo is None or correction is None:
        return
    if correction.chosen in {"sequence_truncated", "sequence_masked"}:
        yield Problem(
            field="spec.train.importanceSampling",
            reason="NotUsedBySurrogate",
            message="vespo multiplies token weights into the completion's ratio itself",
            fix="use tokenTruncated, tokenMasked or none",
        )


_RULES: tuple[Rule, ...] = (
    _group_has_siblings,
    _scale_has_a_baseline,
    _ratio_survives_aggregation,
    _ratio_is_read,
    _clip_is_read,
    _cispo_bound_is_of_the_ratio,
    _estimator_fits_placement,
    _vespo_takes_token_weights,
)


RULES = (
    named_algorithm_fits,
    policy_settings_fit,
    sampling_settings_are_read,
    penalty_has_a_limit,
    reference_is_read,
    clip_is_the_right_way_round,
)

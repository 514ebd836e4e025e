"""Sampling against logprob semantics: what would silently train on wrong ratios."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.train import Train

_NEUTRAL = Sampling()
REPLACEMENT = "\ufffd"
_TRUNCATIONS = {
    "top_p": "topP",
    "top_k": "topK",
    "min_p": "minP",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "repetition_penalty": "repetitionPenalty",
}


def sampling_keeps_the_whole_distribution(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Truncations and penalties change the distribution that ratios are taken of."""
    train = _online(spec)
    if train is None:
        return
    for attribute, name in _TRUNCATIONS.items():
        value = getattr(train.sampling, attribute)
        if value != getattr(_NEUTRAL, attribute):
            yield Problem(
                field=f"spec.train.sampling.{name}",
                reason="SamplingChangesLogprobs",
                message=f"{name}={value} cuts or bends the distribution, so that the importance ratio is wrong",
                fix=f"remove it (off is {getattr(_NEUTRAL, attribute)}); use temperature to sharpen",
            )


def sampling_explores(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Greedy sampling gives every completion of a group the same reward."""
    train = _online(spec)
    if train and train.sampling.temperature == 0:
        yield Problem(
            field="spec.train.sampling.temperature",
            reason="GreedyTraining",
            message="temperature 0 samples the same completion each time: no group has any variance",
            fix="use 1.0 (evaluations have a temperature of their own)",
        )


def temperature_is_usual(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Far from 1 the trained policy is not the one that is served at temperature 1."""
    train = _online(spec)
    if train and train.sampling.temperature not in (0, 1.0):
        yield Problem(
            field="spec.train.sampling.temperature",
            reason="TemperatureNotOne",
            message=f"the policy is trained at temperature {train.sampling.temperature}",
            fix="1.0 trains the distribution that is served; keep this only on purpose",
            severity=Severity.warning,
        )


def stale_data_is_corrected(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Staleness needs importance sampling, or ratios against the actors' own logprobs."""
    train = _online(spec)
    if train is None or not train.max_staleness:
        return
    correction = train.importance_sampling
    if train.old_logprobs == "Learner" and correction is not None and correction.none is not None:
        yield Problem(
            field="spec.train.importanceSampling",
            reason="StaleWithoutCorrection",
            message=f"maxStaleness {train.max_staleness} with oldLogprobs Learner and no correction: "
            "tokens of older policies would count as on-policy",
            fix="use importanceSampling: {tokenTruncated: {cap: '2.0'}}, or oldLogprobs: Actor",
        )


def correction_is_applied_once(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """With the actors' logprobs as denominator the ratio already holds the correction."""
    train = _online(spec)
    if train is None or train.old_logprobs != "Actor" or train.importance_sampling is None:
        return
    if train.importance_sampling.none is None:
        yield Problem(
            field="spec.train.importanceSampling",
            reason="CorrectionAppliedTwice",
            message="oldLogprobs Actor already divides by the actors' probabilities",
            fix="remove importanceSampling, or use oldLogprobs: Learner",
        )


def exact_is_synchronous(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Nothing that depends on timing can be equal between two runs."""
    train = _online(spec)
    if train and train.max_staleness and spec.numerics.mode == "Exact":
        yield Problem(
            field="spec.train.maxStaleness",
            reason="ExactNeedsSynchrony",
            message=f"numerics.mode Exact claims equal runs, which maxStaleness {train.max_staleness} rules out",
            fix="use maxStaleness: 0, or numerics: {mode: Fast}",
        )


def stragglers_need_fast(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """In Exact nothing is decided by how long something takes."""
    train = _online(spec)
    if train and train.stragglers is not None and spec.numerics.mode == "Exact":
        yield Problem(
            field="spec.train.stragglers",
            reason="ExactIgnoresTime",
            message="numerics.mode Exact claims equal runs, so that no sample is moved or left out for being slow",
            fix="remove stragglers, or use numerics: {mode: Fast}",
        )


def over_provisioning_or_refills(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Two ways to ask for more groups than a step takes."""
    train = _online(spec)
    asked = train and train.stragglers and train.stragglers.over_provision
    if train and asked and train.dynamic_sampling is not None:
        yield Problem(
            field="spec.train.stragglers.overProvision",
            reason="RefillsAlready",
            message="dynamicSampling asks for further groups by itself, as many as it needs",
            fix="remove overProvision, or dynamicSampling",
        )


def staleness_fits_the_queue(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A bound beyond the run's length promises nothing."""
    train = _online(spec)
    if train and train.max_steps and train.max_staleness >= train.max_steps:
        yield Problem(
            field="spec.train.maxStaleness",
            reason="StalenessExceedsRun",
            message=f"maxStaleness {train.max_staleness} is not below maxSteps {train.max_steps}",
            fix="use 1 to 4; the actors then work ahead without training on very old tokens",
        )


def lengths_are_ordered(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A least length above the largest cannot be met."""
    train = _online(spec)
    longest = train.sampling.max_new_tokens if train else None
    if train and longest is not None and train.sampling.min_new_tokens > longest:
        yield Problem(
            field="spec.train.sampling.minNewTokens",
            reason="EmptyRange",
            message=f"minNewTokens {train.sampling.min_new_tokens} is above maxNewTokens {longest}",
            fix="lower minNewTokens",
        )


def stop_texts_can_be_said(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What stands for bytes that are no character is no text of a completion."""
    if spec.train is None:
        return
    for index, text in enumerate(spec.train.sampling.stop):
        if REPLACEMENT in text:
            yield Problem(
                field=f"spec.train.sampling.stop[{index}]",
                reason="NeverSaid",
                message=f"{text!r} has U+FFFD, which stands for bytes that are no whole character",
                fix="leave that character out, or name tokens in stopTokenIds",
            )


def overlong_zone_fits(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The penalised zone lies inside the completion."""
    train = _online(spec)
    if train is None or train.overlong_penalty is None or train.sampling.max_new_tokens is None:
        return
    if (train.overlong_penalty.buffer_tokens or 0) >= train.sampling.max_new_tokens:
        yield Problem(
            field="spec.train.overlongPenalty.bufferTokens",
            reason="EmptyRange",
            message=f"the zone of {train.overlong_penalty.buffer_tokens} tokens covers the whole completion "
            f"of {train.sampling.max_new_tokens}",
            fix="make it smaller than sampling.maxNewTokens",
        )


def _online(spec: RolloutRunSpec) -> Train | None:
    return spec.train if spec.train and spec.train.algorithm.is_online else None


RULES = (
    sampling_keeps_the_whole_distribution,
    sampling_explores,
    temperature_is_usual,
    stale_data_is_corrected,
    correction_is_applied_once,
    exact_is_synchronous,
    stragglers_need_fast,
    over_provisioning_or_refills,
    staleness_fits_the_queue,
    lengths_are_ordered,
    stop_texts_can_be_said,
    overlong_zone_fits,
)

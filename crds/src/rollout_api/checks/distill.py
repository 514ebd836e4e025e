"""Distillation: combinations that nothing reads, or that would drop what the teacher teaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.algorithms import Distill
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.train import Train

DISTILL = "spec.train.algorithm.distill"

Rule = Callable[[Train, Distill], Iterator[Problem]]


def distillation_fits(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """All rules of distillation."""
    distill = spec.train.algorithm.distill if spec.train else None
    if spec.train is not None and distill is not None:
        for rule in _RULES:
            yield from rule(spec.train, distill)


def _rewards_are_there(train: Train, distill: Distill) -> Iterator[Problem]:
    if distill.reward_coefficient > 0 and not train.rewards:
        yield Problem(
            field="spec.train.rewards",
            reason="MissingReward",
            message=f"rewardCoefficient {distill.reward_coefficient:g} weighs rewards, and none is named",
            fix="add one, such as rewards: [{builtin: {name: exact-match}}], or remove rewardCoefficient",
        )


def _rewards_have_siblings(_: Train, distill: Distill) -> Iterator[Problem]:
    if distill.reward_coefficient > 0 and distill.samples_per_prompt == 1:
        yield Problem(
            field=f"{DISTILL}.samplesPerPrompt",
            reason="GroupOfOne",
            message="rewardCoefficient compares a completion with its siblings: alone its reward counts 0",
            fix="use samplesPerPrompt 2 or more, or remove rewardCoefficient",
        )


def _every_group_teaches(train: Train, _: Distill) -> Iterator[Problem]:
    if train.dynamic_sampling is not None:
        yield Problem(
            field="spec.train.dynamicSampling",
            reason="NotUsedByAlgorithm",
            message="groups whose rewards are equal would be dropped, and a teacher teaches on them too",
            fix="remove dynamicSampling",
        )


def _only_rewards_are_penalised(train: Train, _: Distill) -> Iterator[Problem]:
    if train.overlong_penalty is not None:
        yield Problem(
            field="spec.train.overlongPenalty",
            reason="NotUsedByAlgorithm",
            message="distillation takes no penalty for length",
            fix="remove it; a length reward with rewardCoefficient has the same effect",
        )


def _reference_is_the_teacher(train: Train, _: Distill) -> Iterator[Problem]:
    if train.reference is not None:
        yield Problem(
            field="spec.train.reference",
            reason="NotUsedByAlgorithm",
            message="distillation compares with its teacher and reads no reference",
            fix="remove reference, or name the model under distill.teacher",
        )


def _clip_is_the_right_way_round(_: Train, distill: Distill) -> Iterator[Problem]:
    if distill.clip_low > distill.clip_high:
        yield Problem(
            field=f"{DISTILL}.clipLow",
            reason="UnusualClip",
            message=f"clipLow {distill.clip_low} is above clipHigh {distill.clip_high}",
            fix="clip-higher means clipHigh above clipLow, such as 0.2 and 0.28",
            severity=Severity.warning,
        )


_RULES: tuple[Rule, ...] = (
    _rewards_are_there,
    _rewards_have_siblings,
    _every_group_teaches,
    _only_rewards_are_penalised,
    _reference_is_the_teacher,
    _clip_is_the_right_way_round,
)
RULES = (distillation_fits,)

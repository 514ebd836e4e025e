"""Distillation: combinations that nothing reads, or that would drop what the teacher teaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.algorithms import Distill
from rollout_api.v1alpha1.training.train import Train

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


_UNREAD = {
    "dynamic_sampling": (
        "groups whose rewards are equal would be dropped, and a teacher teaches on them too",
        "remove dynamicSampling",
    ),
    "overlong_penalty": (
        "distillation takes no penalty for length",
        "remove it; a length reward with rewardCoefficient has the same effect",
    ),
    "reference": (
        "distillation compares with its teacher and reads no reference",
        "remove reference, or name the model under distill.teacher",
    ),
}
"""Fields of ``train`` that distillation does not read: why, and what to do."""


def _everything_is_read(train: Train, _: Distill) -> Iterator[Problem]:
    for attribute, (message, fix) in _UNREAD.items():
        if getattr(train, attribute) is not None:
            yield Problem(
                field=f"spec.train.{Train.model_fields[attribute].alias or attribute}",
                reason="NotUsedByAlgorithm",
                message=message,
                fix=fix,
            )


_RULES: tuple[Rule, ...] = (
    _rewards_are_there,
    _rewards_have_siblings,
    _everything_is_read,
)
RULES = (distillation_fits,)

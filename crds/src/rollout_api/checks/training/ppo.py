"""PPO: combinations that would train something else than what was meant, without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rollout_api.checks.facts import Facts
from rollout_api.checks.training.batch import samples_per_step
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.algorithms import Ppo

PPO = "spec.train.algorithm.ppo"
_KL_STEP_MAX = 0.2
"""Share of its size by which an adaptive coefficient moves in ``horizon`` samples at most."""

Rule = Callable[[RolloutRunSpec, Ppo], Iterator[Problem]]


def ppo_settings_fit(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """All rules of PPO."""
    ppo = spec.train.algorithm.ppo if spec.train else None
    if ppo is not None:
        for rule in _RULES:
            yield from rule(spec, ppo)


def _controller_steers_something(_: RolloutRunSpec, ppo: Ppo) -> Iterator[Problem]:
    if ppo.kl_controller.adaptive is not None and ppo.kl_coefficient == 0:
        yield Problem(
            field=f"{PPO}.klController.adaptive",
            reason="NothingToSteer",
            message="a coefficient of 0 stays 0 whatever it is multiplied with",
            fix="set klCoefficient to where it shall begin (Ziegler 2019: '0.2'), or remove klController",
        )


def _controller_is_slow_enough(spec: RolloutRunSpec, ppo: Ppo) -> Iterator[Problem]:
    adaptive, samples = ppo.kl_controller.adaptive, samples_per_step(spec)
    if adaptive is not None and _KL_STEP_MAX * samples >= adaptive.horizon:
        yield Problem(
            field=f"{PPO}.klController.adaptive.horizon",
            reason="HorizonTooShort",
            message=f"one step of {samples} samples may take {_KL_STEP_MAX * samples / adaptive.horizon:.1f}"
            " times the coefficient away: it would end at 0 or below",
            fix=f"use {10 * samples} or more (Ziegler 2019: 10000)",
        )


def _policy_learns(spec: RolloutRunSpec, ppo: Ppo) -> Iterator[Problem]:
    steps = spec.train.max_steps if spec.train else None
    if steps is not None and ppo.critic.warmup_steps >= steps:
        yield Problem(
            field=f"{PPO}.critic.warmupSteps",
            reason="WarmupTooLong",
            message=f"the critic warms up for {ppo.critic.warmup_steps} of {steps} steps: the policy"
            " would never learn",
            fix="use 0 to a tenth of maxSteps",
        )


def _groups_have_siblings(spec: RolloutRunSpec, ppo: Ppo) -> Iterator[Problem]:
    if spec.train and spec.train.dynamic_sampling is not None and ppo.samples_per_prompt == 1:
        yield Problem(
            field="spec.train.dynamicSampling",
            reason="GroupOfOne",
            message="a single sample never has any variance: every prompt would be dropped",
            fix="remove dynamicSampling, or use samplesPerPrompt 2 or more",
        )


def _estimator_has_a_gradient(_: RolloutRunSpec, ppo: Ppo) -> Iterator[Problem]:
    if ppo.kl_coefficient and ppo.kl_placement == "Loss" and ppo.kl_estimator == "K1":
        yield Problem(
            field=f"{PPO}.klEstimator",
            reason="EstimatorWithoutGradient",
            message="the gradient of K1 is 0 in expectation: in the loss it only adds noise",
            fix="use K2 or K3, or klPlacement: Reward",
            severity=Severity.warning,
        )


_RULES: tuple[Rule, ...] = (
    _controller_steers_something,
    _controller_is_slow_enough,
    _policy_learns,
    _groups_have_siblings,
    _estimator_has_a_gradient,
)

RULES = (ppo_settings_fit,)

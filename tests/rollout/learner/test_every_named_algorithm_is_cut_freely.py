"""From each named preset to a gradient: the manifest's settings, and the same result for any cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from named_settings import policy_settings_of

from rollout.learner.build import build_reference, build_trainer
from rollout.learner.config.policy import PolicySettings
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.policy import Place, PolicyWork
from rollout.learner.train_step import accumulate_gradients
from rollout_api.algorithm_presets import ALGORITHM_PRESETS


@pytest.fixture
def gradient(model_path, settings, groups_of):
    """The flat gradient and metrics of a step's only update; old logprobs are the actors'."""

    def compute(algorithm: PolicySettings, tokens_max: int):
        trainer = build_trainer(model_path, replace(settings, algorithm=algorithm), Parallel())
        reference = build_reference(model_path, trainer.settings, Parallel())
        if reference is not None:
            with torch.no_grad():
                for parameter in reference.parameters():
                    parameter.mul_(1.1)
        work = PolicyWork(groups_of(1), algorithm, Place(device=torch.device("cpu")), reference)
        plan = plan_step(work.shapes(), PlanRules(tokens_max=tokens_max), seed=1, step=1)
        update = plan.updates[0]
        work.prepare(trainer.policy.model, [update.ranks[0]])
        trainer.policy.zero_gradients()
        totals = Totals()
        accumulate_gradients(trainer, work, update, totals)
        flat = torch.cat([p.grad.flatten() for p in trainer.policy.masters.values()])
        return flat, totals.local()[0], work.metrics(1)

    return compute


@pytest.mark.parametrize("preset", ALGORITHM_PRESETS)
def test_one_micro_batch_equals_one_per_sample(preset, gradient, tmp_path) -> None:
    algorithm = replace(policy_settings_of(tmp_path, preset), old_logprobs="Actor")
    whole, sums, metrics = gradient(algorithm, 4096)
    apart, apart_sums, apart_metrics = gradient(algorithm, 1)
    assert whole.isfinite().all()
    assert float(whole.norm()) > 0
    assert float((whole - apart).norm() / whole.norm()) < 1e-5
    assert apart_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)
    assert ("zero_variance_share" in metrics) is (algorithm.advantage_baseline != "None")
    assert metrics["advantage_std"] == pytest.approx(apart_metrics["advantage_std"], rel=1e-5)


def test_the_kl_in_the_reward_is_told_and_reaches_the_advantages(gradient, tmp_path) -> None:
    algorithm = policy_settings_of(tmp_path, "rloo@v1")
    _, sums, metrics = gradient(algorithm, 4096)
    assert metrics["kl_per_answer"] != 0
    assert "kl_loss" not in sums
    assert sums["reference_kl"] > 0
    free = replace(algorithm, reward_kl=None)
    _, _, without = gradient(free, 4096)
    assert without["advantage_std"] != metrics["advantage_std"]
    assert without["reward"] == metrics["reward"]

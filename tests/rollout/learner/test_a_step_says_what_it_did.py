"""Metrics by hand, what several updates do, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rollout.algorithms.advantages.groups import group_advantages
from rollout.errors import RunFailed
from rollout.learner.objectives.metrics import (
    describe_groups,
    describe_lengths,
    describe_losses,
    describe_rewards,
)
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan


def trajectory(sample: int, tokens: int, reward: float, step: int, **other) -> Trajectory:
    return Trajectory(
        ordinal=0,
        sample=sample,
        prompt_ids=(1, 2),
        token_ids=(5,) * tokens,
        actor_logprobs=(-1.0,) * tokens,
        loss_mask=(1,) * tokens,
        spans=(VersionSpan(start=0, end=tokens, lineage=0, step=step),),
        rewards={"a": reward, "b": 1.0},
        reward=reward,
        ending=other.get("ending", "stop"),
    )


def test_a_batch_is_described_by_hand() -> None:
    group = TrajectoryGroup(
        ordinal=0,
        trajectories=(trajectory(0, 3, 0.0, 4), trajectory(1, 5, 1.0, 2, ending="length")),
        num_excluded=1,
    )
    rewards = torch.tensor([[0.0, 1.0]])
    found = group_advantages(rewards, torch.ones_like(rewards), "None")
    said = describe_groups([group], found, step=5)
    assert said["reward"] == 0.5
    assert said["reward_std"] == 0.5
    assert said["reward_by_source"] == {"a": 0.5, "b": 1.0}
    assert said["advantage_std"] == 0.5
    assert said["zero_variance_share"] == 0.0
    assert (said["num_sequences"], said["num_tokens"], said["num_excluded"]) == (2, 10, 1)
    assert (said["length_p50"], said["length_p95"]) == (3.0, 5.0)
    assert said["length_truncated_share"] == 0.5
    # version 4 consumes step 5: ages 0 and 2
    assert said["staleness_histogram"] == {"0": 1, "2": 1}
    assert (said["staleness_mean"], said["staleness_max"]) == (1.0, 2)


def test_percentiles_are_nearest_ranks() -> None:
    said = describe_lengths(list(range(1, 101)))
    assert (said["length_p50"], said["length_p95"], said["length_max"]) == (50.0, 95.0, 100.0)


def test_totals_become_means_by_hand() -> None:
    sums = {
        "tokens": 8.0,
        "policy_loss": 0.6,
        "kl_loss": 0.2,
        "entropy": 16.0,
        "clipped_low": 2.0,
        "importance": 6.0,
        "importance_square": 5.0,
        "importance_truncated": 1.0,
    }
    said = describe_losses(sums, {"ratio_max": 1.5}, num_updates=2)
    assert said["loss"] == pytest.approx(0.4)
    assert (said["policy_loss"], said["kl_loss"]) == (0.3, 0.1)
    assert (said["entropy"], said["clip_fraction_low"]) == (2.0, 0.25)
    assert said["importance_truncated_share"] == 0.125
    assert said["importance_effective_sample_share"] == pytest.approx(36 / (8 * 5))
    assert said["ratio_max"] == 1.5
    assert "reference_kl" not in said


def test_a_single_on_policy_update_has_ratio_one(world, coordinator) -> None:
    calls = coordinator(steps_max=1)
    world.run(calls)
    said = calls.metrics[0]
    assert said["ratio_max"] == 1.0
    assert said["clip_fraction_low"] == said["clip_fraction_high"] == 0.0
    assert "reference_kl" not in said
    assert "importance_truncated_share" not in said
    assert {"wait", "train", "publish"} <= set(said["phase_seconds"])


def test_later_updates_of_a_step_leave_ratio_one(world, coordinator, policy_settings) -> None:
    calls = coordinator(steps_max=1)
    algorithm = replace(policy_settings, epochs=2, mini_batches=2)
    replace(world, settings=replace(world.settings, algorithm=algorithm)).run(calls)
    said = calls.metrics[0]
    assert said["num_updates"] == 4
    assert said["ratio_max"] > 1.0


def test_with_the_actors_logprobs_the_ratio_starts_elsewhere(
    world, coordinator, policy_settings
) -> None:
    calls = coordinator(steps_max=1)
    algorithm = replace(policy_settings, old_logprobs="Actor")
    replace(world, settings=replace(world.settings, algorithm=algorithm)).run(calls)
    assert calls.metrics[0]["ratio_max"] != 1.0


def test_a_reference_is_loaded_only_for_a_kl_coefficient(
    world, coordinator, policy_settings
) -> None:
    assert world.parts(None).reference is None
    loss = replace(policy_settings.loss, kl_coefficient=0.1)
    settings = replace(world.settings, algorithm=replace(policy_settings, loss=loss))
    calls = coordinator(steps_max=2)
    replace(world, settings=settings).run(calls)
    first, second = calls.metrics
    assert first["reference_kl"] == pytest.approx(0, abs=1e-6)
    assert second["reference_kl"] > first["reference_kl"]
    assert second["loss"] == pytest.approx(second["policy_loss"] + second["kl_loss"])


def test_learning_rate_zero_moves_nothing(world, coordinator) -> None:
    calls = coordinator(steps_max=2)
    optimizer = replace(world.settings.optimizer, learning_rate=0.0)
    replace(world, settings=replace(world.settings, optimizer=optimizer)).run(calls)
    assert {record.version.digest for record in calls.records.values()} == {calls.initial.digest}


def test_a_gradient_that_is_not_finite_is_named_and_commits_nothing(world, coordinator) -> None:
    from rollout.learner.loop import Watch, run_learner

    calls = coordinator(steps_max=3)
    parts = world.parts(calls)
    name = "model.layers.1.mlp.down_proj.weight"
    started = parts.session.start(1, "here")
    with torch.no_grad():
        parts.trainer.policy.masters[name][0, 0] = torch.nan
    with pytest.raises(RunFailed, match=r"step 1: .*not finite.*policy_loss"):
        run_learner(parts, started, Watch())
    assert not calls.records


def test_a_loss_that_is_not_finite_is_refused_though_no_gradient_shows_it(
    world, coordinator, policy_settings, batch_of, groups_of
) -> None:
    # The clamp of log ratios lets no gradient through where it meets a NaN.
    groups = groups_of(1)
    own = groups[0].trajectories[0]
    broken = replace(own, actor_logprobs=(math.nan,) * len(own.token_ids))
    first = replace(groups[0], trajectories=(broken, *groups[0].trajectories[1:]))
    calls = coordinator(steps_max=1, make=lambda step: batch_of(step, (first, *groups[1:])))
    algorithm = replace(policy_settings, old_logprobs="Actor")
    with pytest.raises(RunFailed, match=r"step 1: the loss is not finite.*policy_loss"):
        replace(world, settings=replace(world.settings, algorithm=algorithm)).run(calls)
    assert not calls.records


def test_the_parameter_with_the_broken_gradient_is_named(world) -> None:
    policy = world.parts(None).trainer.policy
    policy.zero_gradients()
    policy.sum_gradients()
    name = "model.layers.0.self_attn.q_proj.bias"
    policy.masters[name].grad[0] = torch.inf
    assert policy.broken_gradients() == [name]
    assert not torch.isfinite(policy.gradient_norm())


def test_an_empty_batch_ends_the_run_with_its_reason(world, coordinator, batch_of) -> None:
    calls = coordinator(steps_max=1, make=lambda step: batch_of(step, ()))
    with pytest.raises(RunFailed, match="the batch is empty"):
        world.run(calls)


def test_the_gradient_is_clipped_to_the_norm(world, coordinator) -> None:
    seen = []
    calls = coordinator(steps_max=1)
    settings = replace(world.settings, max_grad_norm=1e-3)
    world = replace(world, settings=settings)
    parts = world.parts(calls)
    step = parts.trainer.optimizer.step
    parts.trainer.optimizer.step = lambda: (
        seen.append(parts.trainer.policy.gradient_norm()),
        step(),
    )
    from rollout.learner.loop import Watch, run_learner

    run_learner(parts, parts.session.start(1, "here"), Watch())
    assert float(seen[0]) == pytest.approx(1e-3, rel=1e-2)
    assert calls.metrics[0]["gradient_norm"] > 1e-3


def test_samples_whose_text_is_not_their_tokens_are_counted() -> None:
    seen = [replace(trajectory(n, 3, 0.0, 4), retokenised=n == 0) for n in range(4)]
    rewards = torch.zeros(1, 4)
    found = group_advantages(rewards, torch.ones_like(rewards), "None")

    def describe(*trajectories: Trajectory) -> dict:
        group = TrajectoryGroup(ordinal=0, trajectories=trajectories)
        return describe_groups([group], found, step=5)

    assert describe(*seen)["retokenised_share"] == 0.25
    unseen = [replace(one, retokenised=None) for one in seen]
    assert "retokenised_share" not in describe(*unseen)


def test_what_the_rewards_cost_is_summed_and_absent_where_nothing_cost() -> None:
    priced = [
        replace(trajectory(n, 3, 0.0, 4), costs={"judge/tokens": 10.0 + n} if n else {})
        for n in range(3)
    ]

    def describe(*trajectories: Trajectory) -> dict:
        return describe_rewards([TrajectoryGroup(ordinal=0, trajectories=trajectories)], step=5)

    assert describe(*priced)["reward_costs"] == {"judge/tokens": 23.0}
    assert "reward_costs" not in describe(priced[0])

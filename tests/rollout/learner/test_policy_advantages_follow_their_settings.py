"""From recorded rewards to advantages: penalty, KL, baseline, whitening, by tables worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollout.algorithms.advantages.overlong import OverlongPenalty
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.dppo import Dppo
from rollout.learner.config.policy import PolicySettings, RewardKl
from rollout.learner.objectives.policy_advantages import estimate_advantages
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan

PLAIN = PolicySettings(
    loss=GrpoSettings(),
    advantage_scale="None",
    advantage_epsilon=1e-6,
    old_logprobs="Learner",
    temperature=1.0,
    width=8,
)


def group(ordinal: int, *samples: tuple[float, tuple[int, ...]]) -> TrajectoryGroup:
    """Samples given by reward and mask."""
    return TrajectoryGroup(
        ordinal=ordinal,
        trajectories=tuple(
            Trajectory(
                ordinal=ordinal,
                sample=place,
                prompt_ids=(1,),
                token_ids=(2,) * len(mask),
                actor_logprobs=(-1.0,) * len(mask),
                loss_mask=mask,
                spans=(VersionSpan(start=0, end=len(mask), lineage=0, step=0),),
                rewards={},
                reward=reward,
                ending="stop",
            )
            for place, (reward, mask) in enumerate(samples)
        ),
    )


GROUPS = (group(0, (1.0, (1, 1)), (0.0, (1, 0, 1))), group(1, (3.0, (1,)), (1.0, (1, 1, 1, 1))))


def table(found) -> list[list[float]]:
    return found.found.advantages_PG.tolist()


def test_without_more_a_sample_has_one_advantage() -> None:
    found = estimate_advantages(GROUPS, PLAIN)
    assert table(found) == [[0.5, -0.5], [1.0, -1.0]]
    assert found.by_token is None
    assert found.metrics == {}


def test_the_overlong_penalty_counts_sampled_tokens_and_is_taken_before_the_baseline() -> None:
    # limit 4, buffer 2, penalty 2: 2 sampled tokens pay 0, the last sample's 4 pay 2: rewards 3, -1
    settings = replace(PLAIN, overlong=OverlongPenalty(limit=4, buffer=2, penalty=2.0))
    found = estimate_advantages(GROUPS, settings)
    assert table(found) == [[0.5, -0.5], [2.0, -2.0]]
    assert found.metrics == {"overlong_penalty": 0.5}


KL = {
    (0, 0): torch.tensor([1.0, 2.0]).double(),
    (0, 1): torch.tensor([1.0, 0.0, 0.0]).double(),
    (1, 0): torch.tensor([0.0]).double(),
    (1, 1): torch.tensor([1.0, 1.0, 1.0, 1.0]).double(),
}


def test_a_completion_pays_its_kl_before_the_baseline() -> None:
    # 0.1 each: rewards 1 - 0.3, 0 - 0.1 | 3, 1 - 0.4; centred by half their difference 0.8 | 2.4
    settings = replace(PLAIN, reward_kl=RewardKl(coefficient=0.1))
    found = estimate_advantages(GROUPS, settings, KL)
    assert table(found) == [pytest.approx([0.4, -0.4]), pytest.approx([1.2, -1.2])]
    assert found.metrics == {"kl_per_answer": pytest.approx(2.0)}


def test_a_token_pays_the_kl_of_what_follows_it() -> None:
    # advantage less 0.1 x (KL from here on): 0.5 - 0.3, 0.5 - 0.2 | -0.5 - 0.1, -0.5, -0.5 ...
    settings = replace(PLAIN, reward_kl=RewardKl(coefficient=0.1, per_token=True))
    found = estimate_advantages(GROUPS, settings, KL)
    assert found.by_token is not None
    assert found.by_token[0, 0].tolist() == pytest.approx([0.2, 0.3])
    assert found.by_token[0, 1].tolist() == pytest.approx([-0.6, -0.5, -0.5])
    assert found.by_token[1, 1].tolist() == pytest.approx([-1.4, -1.3, -1.2, -1.1])
    # by sample: the mean over its sampled tokens; the masked one does not count
    assert table(found)[0] == pytest.approx([0.25, -0.55])


def test_whitening_weighs_tokens_and_leaves_masked_ones_out() -> None:
    # no baseline: rewards at sampled tokens 1 1 | 0 0 | 3 | 1 1 1 1: n 9, mean 1, squares 6, var 0.75
    settings = replace(PLAIN, advantage_baseline="None", advantage_scale="Whiten")
    found = estimate_advantages(GROUPS, settings)
    assert found.by_token is not None
    unit = 1 / 0.75**0.5
    assert found.by_token[0, 1].tolist() == pytest.approx([-unit, 0, -unit], abs=1e-7)
    assert found.by_token[1, 0].tolist() == pytest.approx([2 * unit], abs=1e-7)
    assert table(found)[1] == pytest.approx([2 * unit, 0], abs=1e-7)


@pytest.mark.parametrize(
    ("changes", "skips"),
    [
        ({}, True),
        ({"advantage_baseline": "LeaveOneOut"}, True),
        ({"advantage_baseline": "None", "advantage_scale": "Batch"}, False),
        ({"advantage_scale": "Whiten"}, False),
        ({"reward_kl": RewardKl(coefficient=0.1)}, False),
        ({"loss": GrpoSettings(kl_coefficient=0.1)}, False),
        ({"loss": GrpoSettings(entropy_coefficient=0.1)}, False),
        ({"loss": GrpoSettings(surrogate=Dppo())}, False),
        ({"loss": GrpoSettings(surrogate=Dppo(drift_coefficient=0))}, True),
    ],
)
def test_silent_groups_are_skipped_only_where_nothing_reaches_them(changes, skips) -> None:
    assert replace(PLAIN, **changes).skips_silent is skips

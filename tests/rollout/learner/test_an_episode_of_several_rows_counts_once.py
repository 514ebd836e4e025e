"""A sample of several rows is one sample: one advantage, one place in its group's baseline, one weight in the loss."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from rollout.algorithms.aggregation import Denominators, token_weights
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.importance import Correction
from rollout.errors import RunFailed
from rollout.learner import hash_chain
from rollout.learner.batch_step import prepare_step
from rollout.learner.build import build_reference, build_trainer
from rollout.learner.config.distill import DistillSettings
from rollout.learner.config.policy import RewardKl
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.completions import Completions, rows_in, samples_in
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.distill import Desk, DistillWork
from rollout.learner.objectives.metrics import describe_rewards
from rollout.learner.objectives.plan import PlanRules, decode_plan, encode_plan, plan_step
from rollout.learner.objectives.policy import Place, PolicyWork
from rollout.learner.objectives.policy_advantages import estimate_advantages
from rollout.learner.train_step import accumulate_gradients
from rollout.types import Branch, Trajectory, TrajectoryGroup, VersionSpan

CPU = torch.device("cpu")
WIDE = PlanRules(tokens_max=4096)
MODES = ["TokenMean", "SequenceMean", "SequenceSum", "FixedLength"]


def branch(number: int, length: int, step: int = 0) -> Branch:
    """A row whose first token is not the policy's."""
    return Branch(
        prompt_ids=(40 + number, 41, 42),
        token_ids=tuple((7 * number + 3 * place) % 250 for place in range(length + 1)),
        actor_logprobs=(0.0, *(-5.5 - 0.01 * place for place in range(length))),
        loss_mask=(0, *(1,) * length),
        spans=(VersionSpan(start=1, end=length + 1, lineage=0, step=step),),
    )


def branched(groups: tuple[TrajectoryGroup, ...]) -> tuple[TrajectoryGroup, ...]:
    """Every other sample has one or two rows more."""

    def more(one: Trajectory) -> Trajectory:
        if one.sample % 2:
            return one
        rows = range(1 + one.ordinal % 2)
        return replace(one, branches=tuple(branch(one.ordinal + n, 2 + n) for n in rows))

    return tuple(replace(g, trajectories=tuple(map(more, g.trajectories))) for g in groups)


def flat(groups: tuple[TrajectoryGroup, ...]) -> tuple[TrajectoryGroup, ...]:
    """The same rows as samples of their own, in the same order."""

    def alone(one: Trajectory) -> list[Trajectory]:
        return [
            replace(
                one,
                prompt_ids=row.prompt_ids,
                token_ids=row.token_ids,
                actor_logprobs=row.actor_logprobs,
                loss_mask=row.loss_mask,
                spans=row.spans,
                branches=UNSET,
            )
            for row in one.rows
        ]

    return tuple(
        replace(g, trajectories=tuple(row for one in g.trajectories for row in alone(one)))
        for g in groups
    )


def gradient_of(trainer, work, rules=WIDE):
    plan = decode_plan(encode_plan(plan_step(work.shapes(), rules, seed=1, step=1)))
    trainer.policy.zero_gradients()
    totals = Totals()
    work.prepare(trainer.policy.model, [plan.updates[0].ranks[0]])
    accumulate_gradients(trainer, work, plan.updates[0], totals)
    flat_ = torch.cat([p.grad.flatten() for p in trainer.policy.masters.values()])
    return flat_, totals.local()[0]


@pytest.fixture
def trainer(model_path, settings):
    return build_trainer(model_path, settings, Parallel())


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a - b).norm() / b.norm()) < 1e-5


def test_the_baseline_is_over_episodes_and_all_rows_of_one_share_its_advantage(
    groups_of, policy_settings
):
    plain = groups_of(1)
    groups = branched(plain)
    work = PolicyWork(groups, policy_settings, Place(device=CPU), None)

    known = estimate_advantages(plain, policy_settings).found.advantages_PG
    rows = [(place, sample) for place, sample, _ in rows_in(groups)]
    assert len(rows) > sum(len(group.trajectories) for group in groups)
    for (group, place), sample in rows:
        assert work.advantages[group][place] == float(known[sample])


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_is_that_of_its_rows_side_by_side_with_weights_of_episodes(
    groups_of, trainer, policy_settings, mode
):
    """By hand: each row's loss as a sample of its own, weighed by what its whole episode comes to."""
    algorithm = replace(policy_settings, loss=GrpoSettings(aggregation=mode))
    groups = branched(groups_of(1))
    work = PolicyWork(groups, algorithm, Place(device=CPU), None)
    found, sums = gradient_of(trainer, work)

    alone = replace(
        algorithm,
        loss=GrpoSettings(aggregation="TokenMean"),
        advantage_baseline="None",
        advantage_scale="None",
    )
    tokens = sum(t.num_sampled for g in groups for t in g.trajectories)
    episodes = sum(len(g.trajectories) for g in groups)
    wanted = torch.zeros_like(found)
    for (place, sample, row), (_, one) in zip(
        rows_in(groups), samples_in(flat(groups)), strict=True
    ):
        advantage = work.advantages[place[0]][place[1]]
        single = TrajectoryGroup(ordinal=0, trajectories=(replace(one, reward=advantage),))
        own, _ = gradient_of(trainer, PolicyWork((single,), alone, Place(device=CPU), None))
        sampled, whole = sum(row.loss_mask), groups[sample[0]].trajectories[sample[1]].num_sampled
        weight = {
            "TokenMean": sampled / tokens,
            "SequenceMean": sampled / (whole * episodes),
            "SequenceSum": sampled / episodes,
            "FixedLength": sampled / (episodes * algorithm.width),
        }[mode]
        wanted += weight * own
    assert close(found, wanted)
    assert sums["tokens"] == tokens


@pytest.mark.parametrize("mode", MODES)
def test_how_rows_are_cut_into_micro_batches_changes_nothing(
    groups_of, trainer, model_path, policy_settings, mode
):
    loss = GrpoSettings(aggregation=mode, kl_coefficient=0.1, correction=Correction(high=1.5))
    algorithm = replace(policy_settings, loss=loss)
    groups = branched(groups_of(1, prompts=6))
    reference = build_reference(
        model_path, replace(trainer.settings, algorithm=algorithm), Parallel()
    )

    def gradient(tokens_max):
        work = PolicyWork(groups, algorithm, Place(device=CPU), reference)
        return gradient_of(trainer, work, PlanRules(tokens_max=tokens_max))

    whole, sums = gradient(4096)
    for tokens_max in (40, 1):
        parts, parts_sums = gradient(tokens_max)
        assert close(parts, whole)
        assert parts_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(MODES),
)
def test_an_episode_weighs_the_same_in_one_row_as_in_several(episodes, mode):
    tokens = [n for rows in episodes for n in rows]
    whole = Denominators(num_tokens=sum(tokens), num_sequences=len(episodes), width=9)

    def weights(lengths, sampled):
        sequence = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        sampled_C = None if sampled is None else torch.tensor(sampled, dtype=torch.float64)
        mask = torch.ones(sum(lengths), dtype=torch.float64)
        return token_weights(mode, mask, sequence, whole, sampled_C=sampled_C)

    joined = weights([sum(rows) for rows in episodes], None)
    cut = weights(tokens, [sum(rows) for rows in episodes for n in rows for _ in range(n)])
    assert torch.equal(joined, cut)


def test_denominators_count_episodes(groups_of, policy_settings):
    groups = branched(groups_of(1))
    known = Completions(groups, CPU, policy_settings)
    (update,) = plan_step(known.shapes(), PlanRules(tokens_max=64), seed=1, step=1).updates
    counted = known.denominators(update)
    assert counted.num_sequences == sum(len(g.trajectories) for g in groups)
    assert counted.num_tokens == sum(t.num_sampled for g in groups for t in g.trajectories)


@pytest.mark.parametrize("per_token", [False, True])
def test_the_kl_of_all_rows_is_paid_by_the_episode(groups_of, policy_settings, per_token):
    groups = branched(groups_of(1))
    priced = replace(
        policy_settings,
        advantage_scale="None",
        reward_kl=RewardKl(coefficient=0.5, per_token=per_token),
    )
    kl = {
        place: torch.full((len(row.token_ids),), 0.25, dtype=torch.float64)
        * torch.tensor(row.loss_mask, dtype=torch.float64)
        for place, _, row in rows_in(groups)
    }
    found = estimate_advantages(groups, priced, kl)
    sampled = [t.num_sampled for g in groups for t in g.trajectories]
    assert found.metrics["kl_per_answer"] == pytest.approx(0.25 * sum(sampled) / len(sampled))
    if per_token:  # each token pays for what follows it in its row
        for place, sample, row in rows_in(groups):
            values = found.by_token[place]
            last = max(at for at, mask in enumerate(row.loss_mask) if mask)
            trained = groups[sample[0]].trajectories
            base = trained[sample[1]].reward - sum(t.reward for t in trained) / len(trained)
            assert float(values[last]) == pytest.approx(base - 0.125)
        return
    for position, group in enumerate(groups):
        paid = [t.reward - 0.125 * t.num_sampled for t in group.trajectories]
        mean = sum(paid) / len(paid)
        for sample, value in enumerate(paid):
            wanted = pytest.approx(value - mean)
            assert float(found.found.advantages_PG[position, sample]) == wanted


def test_whitening_and_the_penalty_for_length_see_every_sampled_token_once(
    groups_of, policy_settings
):
    groups = branched(groups_of(1))
    white = replace(policy_settings, advantage_scale="Whiten", overlong=float)
    found = estimate_advantages(groups, white)
    rows = list(rows_in(groups))
    mask = torch.tensor([m for _, _, row in rows for m in row.loss_mask]) > 0
    values = torch.cat([found.by_token[place] for place, _, _ in rows])[mask]
    assert float(values.mean()) == pytest.approx(0, abs=1e-9)
    lengths = [t.num_sampled for g in groups for t in g.trajectories]
    assert found.metrics["overlong_penalty"] == pytest.approx(sum(lengths) / len(lengths))


def test_a_teacher_scores_all_rows_and_rewards_are_the_episodes(
    groups_of, trainer, model_path, settings
):
    algorithm = DistillSettings(
        loss=GrpoSettings(),
        old_logprobs="Learner",
        temperature=1.0,
        width=8,
        kl_coefficient=1.0,
        kl_discount=0.5,
        reward_coefficient=1.0,
    )
    groups = branched(groups_of(1))
    teacher = build_trainer(model_path, replace(settings, seed=3), Parallel()).policy.model

    def gradient(tokens_max):
        work = DistillWork(groups, algorithm, Desk(teacher=teacher, device=CPU))
        return *gradient_of(trainer, work, PlanRules(tokens_max=tokens_max)), work

    whole, sums, work = gradient(4096)
    parts, _, _ = gradient(1)
    assert float(whole.norm()) > 0
    assert close(parts, whole)
    assert [len(of) for of in work.advantages] == [
        sum(len(t.rows) for t in g.trajectories) for g in groups
    ]
    assert sums["tokens"] == sum(t.num_sampled for g in groups for t in g.trajectories)


def test_what_a_batch_says_counts_rows_where_there_are_several(groups_of):
    plain, groups = groups_of(1), branched(groups_of(1))
    trajectories = [t for g in groups for t in g.trajectories]
    found = describe_rewards(groups, 1)
    assert "num_rows" not in describe_rewards(plain, 1)
    assert found["num_rows"] == sum(len(t.rows) for t in trajectories)
    assert found["num_sequences"] == len(trajectories)
    assert found["num_completion_tokens"] == sum(t.num_tokens for t in trajectories)
    assert found["reward"] == describe_rewards(plain, 1)["reward"]


def test_the_oldest_token_of_any_row_is_the_samples_age(groups_of):
    (group, *rest) = groups_of(5)
    old = replace(group.trajectories[0], branches=(branch(1, 3, step=1),))
    groups = (replace(group, trajectories=(old, *group.trajectories[1:])), *rest)
    assert describe_rewards(groups, 5)["staleness_max"] == 3


def test_the_digest_tells_rows_from_samples_and_every_change_of_one(groups_of):
    groups = branched(groups_of(1))
    (group, *rest), known = groups, hash_chain.digest_groups(groups)
    first = group.trajectories[0]
    row = first.branches[0]
    changes = (
        {"prompt_ids": (1, 2)},
        {"token_ids": (*row.token_ids[:-1], 99)},
        {"actor_logprobs": (*row.actor_logprobs[:-1], -1.0)},
        {"loss_mask": (1, *row.loss_mask[1:])},
    )
    others = [(replace(row, **change), *first.branches[1:]) for change in changes]
    others.append((*first.branches, row))
    digests = {known, hash_chain.digest_groups(flat(groups))}
    for branches in others:
        other = replace(first, branches=branches)
        changed = replace(group, trajectories=(other, *group.trajectories[1:]))
        digests.add(hash_chain.digest_groups((changed, *rest)))
    assert len(digests) == 2 + len(others)


def test_an_algorithm_that_learns_from_one_row_takes_no_step_on_several(
    groups_of, batch_of, model_path, settings, ppo_settings
):
    chosen = replace(settings, algorithm=ppo_settings)
    trainer = build_trainer(model_path, chosen, Parallel())
    parts = SimpleNamespace(trainer=trainer, parallel=trainer.policy.parallel)
    batch = batch_of(1, branched(groups_of(1)))
    with pytest.raises(RunFailed, match="several rows, and ppo learns from one"):
        prepare_step(parts, SimpleNamespace(step=0), batch, None)


def test_a_killed_learner_meets_the_chain_of_one_that_was_not(
    tmp_path, world, coordinator, groups_of, batch_of
):
    """Rows are cut, computed and digested alike when a step is taken again, alone or from an anchor."""

    def make(step):
        return batch_of(step, branched(groups_of(step)))

    whole = coordinator(steps_max=4, make=make)
    world.run(whole)

    parted = coordinator(steps_max=2, make=make)
    other = replace(world, folder=tmp_path / "other")
    (tmp_path / "other").mkdir()
    other.run(parted)
    parted.anchors = [one for one in parted.anchors if one.step == 0]
    parted.steps_max = 4
    other.run(parted)

    plain = coordinator(steps_max=4, make=lambda step: batch_of(step, groups_of(step)))
    third = replace(world, folder=tmp_path / "third")
    (tmp_path / "third").mkdir()
    third.run(plain)
    assert [parted.chain(step) for step in range(1, 5)] == [whole.chain(n) for n in range(1, 5)]
    assert plain.chain() != whole.chain()
    assert [of["num_rows"] for of in whole.metrics] == [28] * 4
    assert "num_rows" not in plain.metrics[0]

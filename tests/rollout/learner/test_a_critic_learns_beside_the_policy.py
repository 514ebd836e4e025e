"""PPO's learner: values, warm-up, KL coefficient, and what of it is durable."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from rollout.algorithms.kl_controller import KlTarget
from rollout.errors import RunFailed, SpecError
from rollout.learner.batch_step import take_step
from rollout.learner.build import build_reference, build_trainer
from rollout.learner.checkpoint import restore_anchor, state_tensors
from rollout.learner.forward.packed_rows import GroupTokens, build_group_row
from rollout.learner.model.critic import build_value_model, token_values
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import load_model
from rollout.learner.model.scorer import load_scorer
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.ppo import Helpers, PpoWork
from rollout.learner.train_step import accumulate_gradients
from rollout.models.resolve import resolve_model
from rollout.runs.pipeline import materialise_model


@pytest.fixture
def ppo_world(world, ppo_settings):
    return replace(world, settings=replace(world.settings, algorithm=ppo_settings))


@pytest.fixture
def work_of(model_path, settings):
    """A trainer, and the work of some groups on it, prepared; with one update unless ``rules`` say more."""

    def build(algorithm, groups, rules=PlanRules(tokens_max=4096), base=settings):  # noqa: B008 - frozen
        trainer = build_trainer(model_path, replace(base, algorithm=algorithm), Parallel())
        reference = build_reference(model_path, trainer.settings, Parallel())
        assert trainer.critic is not None
        helpers = Helpers(critic=trainer.critic.model, reference=reference, parallel=Parallel())
        work = PpoWork(groups, replace(algorithm, epochs=1), helpers, kl_coefficient=0.05)
        plan = plan_step(work.shapes(), rules, seed=1, step=1)
        work.prepare(trainer.policy.model, [update.ranks[0] for update in plan.updates])
        return trainer, work, plan

    return build


def gradients(trainer, work, update) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    totals = Totals()
    trainer.policy.zero_gradients()
    accumulate_gradients(trainer, work, update, totals)
    flat = [
        torch.cat([p.grad.flatten() for p in held.masters.values()])
        for held in (trainer.policy, trainer.critic.held)
    ]
    return flat[0], flat[1], totals.local()[0]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def perturb(trainer) -> None:
    """Move both models a little, so that ratios are not 1 and values not the old ones."""
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for held in (trainer.policy, trainer.critic.held):
            for master in held.masters.values():
                master.add_(0.02 * torch.randn(master.shape, generator=draw))


def test_a_value_belongs_to_the_tokens_before_its_own(model_path) -> None:
    model = build_value_model(model_path, seed=1)
    group = GroupTokens(prompt_ids=(5, 6, 7), completion_ids=((8, 9, 2), (10, 2)))
    found = token_values(model, build_group_row([group]))
    plain = load_model(model_path)
    expected = []
    for completion in group.completion_ids:
        for t in range(len(completion)):
            ids = torch.tensor([[*group.prompt_ids, *completion[:t]]])
            hidden = plain.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
            expected.append(model.head(hidden).item())
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_new_head_is_small_and_belongs_to_the_seed(model_path) -> None:
    one, again, other = (build_value_model(model_path, seed).head for seed in (1, 1, 2))
    assert torch.equal(one.weight, again.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.bias.item() == 0
    assert float(one.weight.detach().std()) == pytest.approx(1 / 33, rel=0.4)


def test_while_the_critic_warms_up_the_policy_stays(ppo_world, coordinator, batch_of) -> None:
    parts = ppo_world.parts(coordinator(steps_max=0))
    trainer = parts.trainer
    before = {name: m.detach().clone() for name, m in trainer.policy.masters.items()}
    critic = {name: m.detach().clone() for name, m in trainer.critic.held.masters.items()}
    progress = _start(parts)
    first = take_step(parts, progress, batch_of(1), None)
    assert all(torch.equal(before[n], m) for n, m in trainer.policy.masters.items())
    assert not any(torch.equal(critic[n], m) for n, m in trainer.critic.held.masters.items())
    assert not trainer.optimizer.state
    assert (first.metrics["gradient_norm"], first.metrics["num_updates"]) == (0, 4)
    second = take_step(parts, replace(progress, step=1), batch_of(2), None)
    assert second.metrics["gradient_norm"] > 0
    assert any(not torch.equal(before[n], m) for n, m in trainer.policy.masters.items())


def _start(parts):
    from rollout.learner.checkpoint import Progress
    from rollout.protocol.messages import Cursor
    from rollout.types import WeightVersion

    version = WeightVersion(lineage=0, step=0, digest="", object="")
    return Progress(lineage=0, step=0, chain="", version=version, cursor=Cursor(next_ordinal=0))


def test_a_critic_comes_to_explain_what_it_sees_again(ppo_world, coordinator, batch_of) -> None:
    parts = ppo_world.parts(coordinator(steps_max=0))
    progress, losses = _start(parts), []
    algorithm = replace(
        ppo_world.settings.algorithm,
        critic=replace(ppo_world.settings.algorithm.critic, warmup_steps=99),
        value=replace(ppo_world.settings.algorithm.value, clip=0.0),
    )
    settings = replace(parts.trainer.settings, algorithm=algorithm)
    critic = replace(parts.trainer.critic, settings=algorithm.critic)
    parts = replace(parts, trainer=replace(parts.trainer, settings=settings, critic=critic))
    for step in range(8):
        done = take_step(parts, replace(progress, step=step), batch_of(1), None)
        losses.append((done.metrics["value_loss"], done.metrics["explained_variance"]))
    assert losses[-1][0] < 0.5 * losses[0][0]
    assert losses[-1][1] > losses[0][1] + 0.3


@pytest.mark.parametrize("tokens_max", [1, 40])
def test_the_cut_into_micro_batches_changes_neither_gradient(
    work_of, ppo_settings, groups_of, tokens_max
) -> None:
    groups = groups_of(1, prompts=8)
    found = []
    for rules in (PlanRules(tokens_max=4096), PlanRules(tokens_max=tokens_max)):
        trainer, work, plan = work_of(replace(ppo_settings, bootstraps=True), groups, rules)
        perturb(trainer)
        found.append(gradients(trainer, work, plan.updates[0]))
    (policy, critic, sums), (policy_cut, critic_cut, sums_cut) = found
    assert relative(policy_cut, policy) < 2e-5
    assert relative(critic_cut, critic) < 2e-5
    assert sums_cut == pytest.approx(sums, rel=1e-3, abs=1e-5)


def with_tools(groups, junk: int):
    """Every second token of each completion is a tool's: ``junk`` and its logprob stand there."""

    def one(trajectory):
        length = len(trajectory.token_ids)
        return replace(
            trajectory,
            loss_mask=tuple((t + 1) % 2 for t in range(length)),
            actor_logprobs=tuple(
                p if t % 2 == 0 else -float(junk) for t, p in enumerate(trajectory.actor_logprobs)
            ),
        )

    return tuple(
        replace(group, trajectories=tuple(map(one, group.trajectories))) for group in groups
    )


def test_a_tools_tokens_teach_neither_model(work_of, ppo_settings, groups_of) -> None:
    """What was recorded under the mask changes no gradient, and no such token is in the counts."""
    found = []
    for junk in (3, 300):
        groups = with_tools(groups_of(2), junk)
        trainer, work, plan = work_of(replace(ppo_settings, old_logprobs="Actor"), groups)
        perturb(trainer)
        found.append(gradients(trainer, work, plan.updates[0]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    tokens = sum(sum(t.loss_mask) for g in groups for t in g.trajectories)
    assert found[0][2]["tokens"] == tokens


def test_a_cut_answer_is_worth_what_the_critic_expects(work_of, ppo_settings, groups_of) -> None:
    def cut(group):
        first, *others = group.trajectories
        return replace(group, trajectories=(replace(first, ending="length"), *others))

    groups = tuple(map(cut, groups_of(1)))
    base = replace(ppo_settings, kl_coefficient=0.0)
    _, terminal, _ = work_of(base, groups)
    trainer, bootstrap, _ = work_of(replace(base, bootstraps=True), groups)
    for place, group in enumerate(groups):
        trajectory = group.trajectories[0]
        longer = GroupTokens(
            prompt_ids=trajectory.prompt_ids, completion_ids=((*trajectory.token_ids, 0),)
        )
        row = build_group_row([longer])
        end = token_values(trainer.critic.model, row)[-1].item()
        gained = bootstrap.estimates.advantages[place, 0] - terminal.estimates.advantages[place, 0]
        assert float(gained[-1]) == pytest.approx(end, abs=1e-6)
        for sample in range(1, 4):
            same = bootstrap.estimates.advantages[place, sample]
            assert torch.allclose(same, terminal.estimates.advantages[place, sample], atol=1e-6)


def test_the_kl_coefficient_moves_and_is_part_of_the_state(ppo_world, coordinator) -> None:
    calls = coordinator(steps_max=3)
    parts = ppo_world.run(calls)
    control = parts.trainer.control
    used = [metrics["kl_coefficient"] for metrics in calls.metrics]
    assert used[0] == 0.05
    # The first steps' KL is 0, below the target: -20 % of 16 samples in 100.
    assert used[1:] == pytest.approx([0.05 * 0.968, 0.05 * 0.968**2])
    assert calls.anchors[-1].state["klCoefficient"] == control.coefficient
    assert state_tensors(parts.trainer)["kl/coefficient"].item() == control.coefficient


def test_actors_are_served_the_policy_alone(ppo_world, coordinator) -> None:
    calls = coordinator(steps_max=3)
    parts = ppo_world.run(calls)
    served = load_file(parts.store.path(calls.records[3].version.object))
    assert set(served) == set(parts.trainer.policy.masters)
    anchored = load_file(parts.store.path(calls.anchors[-1].objects["critic"]))
    assert {"head.weight", "head.bias"} <= set(anchored)


def test_an_anchor_restores_the_critic_bit_for_bit(ppo_world, coordinator) -> None:
    calls = coordinator(steps_max=3)
    old = ppo_world.run(calls)
    fresh = ppo_world.parts(None)
    restore_anchor(calls.anchors[-1], fresh.store, fresh.trainer)
    before, after = state_tensors(old.trainer), state_tensors(fresh.trainer)
    assert set(before) == set(after)
    assert any(name.startswith("critic/head.weight/exp_avg") for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_in_bfloat16_a_resume_meets_the_chain(ppo_world, coordinator) -> None:
    """Both models keep float32 masters beside what they compute with, and both come back."""
    world = replace(ppo_world, settings=replace(ppo_world.settings, dtype="BFloat16"))
    calm, calls = coordinator(steps_max=4), coordinator(steps_max=3)
    replace(world, folder=world.folder / "calm").run(calm)
    world.run(calls)
    masters = load_file(world.parts(None).store.path(calls.anchors[-1].objects["critic"]))
    assert {master.dtype for master in masters.values()} == {torch.float32}
    calls.steps_max = 4
    world.run(calls)
    assert calls.records == calm.records


def test_recomputed_activations_change_nothing(ppo_settings, work_of, settings, groups_of) -> None:
    found = []
    for checkpointed in (False, True):
        chosen = replace(settings, activation_checkpointing=checkpointed)
        trainer, work, plan = work_of(ppo_settings, groups_of(1), base=chosen)
        perturb(trainer)
        found.append(gradients(trainer, work, plan.updates[0])[:2])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("missing", ["critic", "critic-optimizer", "klCoefficient"])
def test_an_anchor_without_its_critic_is_named(ppo_world, coordinator, missing) -> None:
    calls = coordinator(steps_max=3)
    ppo_world.run(calls)
    manifest = calls.anchors[-1]
    poorer = msgspec.structs.replace(
        manifest,
        objects={k: v for k, v in manifest.objects.items() if k != missing},
        state={k: v for k, v in manifest.state.items() if k != missing},
    )
    fresh = ppo_world.parts(None)
    with pytest.raises(RunFailed, match=f"anchor step-000003 has no {missing}"):
        restore_anchor(poorer, fresh.store, fresh.trainer)


def test_the_chain_covers_the_critic(ppo_world, coordinator, batch_of) -> None:
    """One bit of the critic's state, and the chain of a step in which nothing else differs is another."""
    from rollout.learner.state_digest import seal_step

    links = []
    for shift in (0.0, 1e-3):
        parts = ppo_world.parts(coordinator(steps_max=0))
        done = take_step(parts, _start(parts), batch_of(1), None)
        with torch.no_grad():
            parts.trainer.critic.held.masters["head.bias"].add_(shift)
        links.append(seal_step(parts.trainer, None, "", done))
    assert links[0].digest == links[1].digest
    assert links[0].chain != links[1].chain


def test_a_critic_that_breaks_is_named(ppo_world, coordinator, batch_of) -> None:
    parts = ppo_world.parts(coordinator(steps_max=0))
    with torch.no_grad():
        parts.trainer.critic.held.masters["head.bias"].fill_(math.nan)
    with pytest.raises(RunFailed, match="value_loss"):
        take_step(parts, _start(parts), batch_of(1), None)


def test_a_fixed_coefficient_and_none_at_all(ppo_world, coordinator) -> None:
    algorithm = replace(ppo_world.settings.algorithm, kl_target=None)
    fixed = replace(ppo_world, settings=replace(ppo_world.settings, algorithm=algorithm))
    calls = coordinator(steps_max=2)
    fixed.run(calls)
    assert [metrics["kl_coefficient"] for metrics in calls.metrics] == [0.05, 0.05]
    off = replace(algorithm, kl_coefficient=0.0, kl_target=KlTarget(kl=1, horizon=100))
    parts = replace(fixed, settings=replace(fixed.settings, algorithm=off)).parts(None)
    assert parts.reference is None
    assert parts.trainer.control is None


@pytest.fixture
def reward_model(tmp_path):
    """A reward model's folder made of other sizes than the policy's, and its head."""
    uri = "rollout://tiny-qwen2?hidden=64&layers=1&heads=2"
    causal = resolve_model(uri, cache_dir=tmp_path).path
    scorer = load_scorer(causal, seed=3)

    def make(name: str, **tensors: torch.Tensor):
        save_file(tensors, tmp_path / f"{name}.safetensors")
        return materialise_model(
            config_path=causal,
            weights=tmp_path / f"{name}.safetensors",
            target=tmp_path / name,
            score_pad_id=0,
        )

    named = {name: p.detach().contiguous() for name, p in scorer.named_parameters()}
    headless = {name: p for name, p in named.items() if name != "score.weight"}
    return make("whole", **named), make("headless", **headless), scorer.score.weight


def test_a_critic_may_start_from_a_reward_model_of_any_size(
    reward_model, model_path, settings, ppo_settings
) -> None:
    folder, headless, head = reward_model
    settings = replace(settings, algorithm=ppo_settings)
    critic = build_trainer(model_path, settings, Parallel(), folder).critic
    assert torch.equal(critic.model.head.weight, head)
    assert critic.model.head.bias.item() == 0
    with pytest.raises(SpecError, match=r"score\.weight"):
        build_trainer(model_path, settings, Parallel(), headless)

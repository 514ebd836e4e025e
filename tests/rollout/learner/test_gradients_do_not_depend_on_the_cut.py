"""Micro-batches and packing change memory and speed; gradients before clipping stay what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.clip import Clipped
from rollout.algorithms.surrogates.importance import Correction
from rollout.learner.build import build_reference, build_trainer
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.policy import Place, PolicyWork
from rollout.learner.objectives.sft import SftWork
from rollout.learner.train_step import accumulate_gradients

CPU = torch.device("cpu")


@pytest.fixture
def gradient_of(model_path, settings):
    """The flat gradient and the summed metrics of one update, cut by the given rules."""

    def compute(make_work, rules, algorithm=settings.algorithm):
        trainer = build_trainer(model_path, replace(settings, algorithm=algorithm), Parallel())
        work = make_work(trainer)
        plan = plan_step(work.shapes(), rules, seed=1, step=1)
        trainer.policy.zero_gradients()
        totals = Totals()
        work.prepare(trainer.policy.model, [plan.updates[0].ranks[0]])
        accumulate_gradients(trainer, work, plan.updates[0], totals)
        flat = torch.cat([p.grad.flatten() for p in trainer.policy.masters.values()])
        return flat, totals.local()[0], plan

    return compute


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def num_passes(plan) -> int:
    return len(plan.updates[0].ranks[0])


@pytest.mark.parametrize("mode", ["TokenMean", "SequenceMean", "SequenceSum", "FixedLength"])
def test_one_micro_batch_of_eight_equals_eight_of_one(
    gradient_of, groups_of, policy_settings, model_path, settings, mode
) -> None:
    loss = GrpoSettings(
        aggregation=mode,
        kl_coefficient=0.1,
        correction=Correction(high=1.5),
        entropy_coefficient=0.01,
        surrogate=Clipped(high=0.28),
    )
    algorithm = replace(policy_settings, loss=loss)
    groups = groups_of(1, prompts=8, group=4)

    def make_work(trainer):
        reference = build_reference(model_path, trainer.settings, Parallel())
        return PolicyWork(groups, algorithm, Place(device=CPU), reference)

    whole, sums, one = gradient_of(make_work, PlanRules(tokens_max=4096), algorithm)
    parts, parts_sums, eight = gradient_of(make_work, PlanRules(tokens_max=40), algorithm)
    single, _, many = gradient_of(make_work, PlanRules(tokens_max=1), algorithm)
    assert (num_passes(one), num_passes(many)) == (1, 32)
    assert num_passes(eight) >= 4
    assert relative(parts, whole) < 1e-5
    assert relative(single, whole) < 1e-5
    assert parts_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_the_order_of_a_groups_samples_changes_nothing(
    gradient_of, groups_of, policy_settings
) -> None:
    groups = groups_of(1)
    turned = tuple(replace(g, trajectories=g.trajectories[::-1]) for g in groups)

    def gradient(chosen):
        def make_work(_):
            return PolicyWork(chosen, policy_settings, Place(device=CPU), None)

        return gradient_of(make_work, PlanRules(tokens_max=40))

    straight, sums, _ = gradient(groups)
    backwards, turned_sums, _ = gradient(turned)
    assert relative(backwards, straight) < 1e-5
    assert turned_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_groups_that_lost_samples_are_cut_as_freely(
    gradient_of, groups_of, policy_settings
) -> None:
    """Infrastructure took 0, 1 or 2 samples of each group: advantages are among those that are left."""
    groups = tuple(
        replace(g, trajectories=g.trajectories[g.ordinal % 3 :]) for g in groups_of(1, prompts=6)
    )
    assert len({len(group.trajectories) for group in groups}) == 3
    place = Place(device=CPU)
    works = [lambda _: PolicyWork(groups, policy_settings, place, None) for _ in range(2)]
    whole, sums, _ = gradient_of(works[0], PlanRules(tokens_max=4096))
    single, single_sums, plan = gradient_of(works[1], PlanRules(tokens_max=1))
    assert num_passes(plan) == sum(len(group.trajectories) for group in groups)
    assert float(whole.norm()) > 0
    assert relative(single, whole) < 1e-5
    assert single_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_groups_without_signal_need_no_backward(gradient_of, groups_of, policy_settings) -> None:
    def quiet(group):
        same = tuple(replace(t, reward=1.0) for t in group.trajectories)
        return replace(group, trajectories=same)

    groups = tuple(quiet(g) if g.ordinal % 2 else g for g in groups_of(1, prompts=8))

    def work(*, skips):
        place = Place(device=CPU, skips_silent=skips)
        return lambda _: PolicyWork(groups, policy_settings, place, None)

    all_of_it, sums, _ = gradient_of(work(skips=False), PlanRules(tokens_max=4096))
    skipped, skipped_sums, plan = gradient_of(work(skips=True), PlanRules(tokens_max=4096))
    assert [micro.learns for micro in plan.updates[0].ranks[0]] == [True, False]
    assert relative(skipped, all_of_it) < 1e-5
    assert skipped_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_recomputed_activations_change_nothing(
    model_path, settings, groups_of, policy_settings
) -> None:
    passes = []

    def gradient(*, checkpointed: bool) -> torch.Tensor:
        chosen = replace(settings, activation_checkpointing=checkpointed)
        trainer = build_trainer(model_path, chosen, Parallel())
        attention = trainer.policy.model.get_decoder().layers[0].self_attn
        attention.register_forward_hook(lambda *_: passes.append(checkpointed))
        work = PolicyWork(groups_of(1), policy_settings, Place(device=CPU), None)
        plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=1, step=1)
        trainer.policy.zero_gradients()
        accumulate_gradients(trainer, work, plan.updates[0], Totals())
        return torch.cat([p.grad.flatten() for p in trainer.policy.masters.values()])

    assert torch.equal(gradient(checkpointed=False), gradient(checkpointed=True))
    assert (passes.count(False), passes.count(True)) == (1, 2)


@pytest.fixture
def sequences():
    from rollout.learner.forward.packed_rows import SequenceTokens

    draw = torch.Generator().manual_seed(3)

    def one(length: int, prompt: int) -> SequenceTokens:
        ids = torch.randint(0, 250, (length,), generator=draw).tolist()
        return SequenceTokens(
            token_ids=tuple(ids), scored=tuple(int(t >= prompt) for t in range(length))
        )

    return [one(length, 1 + length // 3) for length in (5, 17, 9, 30, 12, 2, 24, 11)]


def test_packing_on_and_off_give_the_same_loss_and_gradient(gradient_of, sequences) -> None:
    def make_work(_):
        return SftWork(sequences, CPU)

    packed, packed_sums, dense = gradient_of(make_work, PlanRules(tokens_max=64))
    alone, alone_sums, sparse = gradient_of(make_work, PlanRules(tokens_max=0))
    assert (num_passes(dense), num_passes(sparse)) == (2, 8)
    assert relative(packed, alone) < 1e-5
    assert packed_sums["sft_loss"] == pytest.approx(alone_sums["sft_loss"], rel=1e-5)


def test_a_row_cut_before_its_answer_counts_for_nothing(gradient_of, sequences) -> None:
    from rollout.learner.forward.packed_rows import SequenceTokens

    lost = SequenceTokens(token_ids=(1, 2, 3), scored=(0, 0, 0))
    clean, _, _ = gradient_of(lambda _: SftWork(sequences, CPU), PlanRules(tokens_max=256))
    with_lost = SftWork([lost, *sequences], CPU)
    same, _, _ = gradient_of(lambda _: with_lost, PlanRules(tokens_max=256))
    assert torch.equal(clean, same)
    assert with_lost.metrics(1)["num_without_target"] == 1


def test_the_loss_equals_transformers_own(model_path, sequences) -> None:
    from rollout.learner.model.policy import load_model

    model = load_model(model_path)
    work = SftWork(sequences[:1], CPU)
    plan = plan_step(work.shapes(), PlanRules(tokens_max=64), seed=0, step=1)
    update = plan.updates[0]
    ours = work.micro_loss(model, update.ranks[0][0], work.denominators(update)).loss
    ids = torch.tensor([sequences[0].token_ids])
    labels = torch.where(torch.tensor([sequences[0].scored]) > 0, ids, -100)
    theirs = model(input_ids=ids, labels=labels).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_smoothed_labels_are_those_of_torch(model_path, sequences) -> None:
    from rollout.learner.model.policy import load_model

    model = load_model(model_path)
    work = SftWork(sequences[:1], CPU, label_smoothing=0.2)
    update = plan_step(work.shapes(), PlanRules(tokens_max=64), seed=0, step=1).updates[0]
    ours = work.micro_loss(model, update.ranks[0][0], work.denominators(update)).loss
    ids, scored = sequences[0].token_ids, sequences[0].scored
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    at = [t for t, flag in enumerate(scored) if flag]
    theirs = torch.nn.functional.cross_entropy(
        logits[[t - 1 for t in at]], torch.tensor([ids[t] for t in at]), label_smoothing=0.2
    )
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)

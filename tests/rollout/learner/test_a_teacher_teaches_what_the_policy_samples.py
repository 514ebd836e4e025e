"""Distillation in the learner: resumed exactly, cut freely, and the KL to the teacher falls.

The teacher was trained to answer with even tokens; the policy starts where the teacher did and sees no
reward. What is measured is the exact KL along answers to prompts that were never learned from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from even_answers import draw_prompts
from torch.nn.functional import cross_entropy

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.clip import Clipped
from rollout.errors import SpecError
from rollout.learner.build import build_trainer, load_frozen
from rollout.learner.config.distill import DistillSettings
from rollout.learner.loop import run_learner
from rollout.learner.model.adapter import LoraSettings
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives import distill as distill_work
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.distill import Desk, DistillWork
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.train_step import accumulate_gradients
from rollout.models.teachers import check_teacher
from rollout.protocol import messages as m
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan

STEPS, TEACHER_STEPS, PROMPTS, LENGTH = 20, 20, 64, 4
SHARE_LEFT_MAX = 0.1
CPU = torch.device("cpu")
LORA = LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp"))


@pytest.fixture
def algorithm() -> DistillSettings:
    return DistillSettings(
        loss=GrpoSettings(surrogate=Clipped()), old_logprobs="Learner", temperature=1.0, width=8
    )


@pytest.fixture
def teacher_of(model_path, settings) -> Callable[[], torch.nn.Module]:
    """The tests' model after a little training on even tokens, the same every time."""

    def load() -> torch.nn.Module:
        model = load_frozen(model_path, settings, Parallel()).requires_grad_()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        noise = torch.Generator().manual_seed(5)
        for _ in range(TEACHER_STEPS):
            ids_BT = torch.randint(0, 256, (PROMPTS, 3 + LENGTH), generator=noise)
            ids_BT[:, 3:] -= ids_BT[:, 3:] % 2
            logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, 2:-1]
            optimizer.zero_grad()
            cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 3:].flatten()).backward()
            optimizer.step()
        return model.requires_grad_(requires_grad=False)

    return load


@pytest.fixture
def taught_world(world, algorithm, teacher_of):
    """Runs whose learners have the teacher."""

    def make(*, lora=None, **changes):
        chosen = replace(algorithm, **changes)
        inner = replace(world, settings=replace(world.settings, algorithm=chosen, lora=lora))

        class Taught(type(inner)):
            def parts(self, calls, store=None):
                return replace(super().parts(calls, store), teacher=teacher_of())

        return Taught(folder=inner.folder, model_path=inner.model_path, settings=inner.settings)

    return make


@pytest.mark.parametrize(
    "updates",
    [{}, {"epochs": 2, "mini_batches": 2, "kl_discount": 1.0}, {"lora": LORA}],
    ids=["one-update", "four-updates", "adapter"],
)
def test_a_resumed_run_meets_the_chain_it_committed(taught_world, coordinator, updates) -> None:
    calm, calls = coordinator(steps_max=5), coordinator(steps_max=4)
    world = taught_world(**updates)
    replace(world, folder=world.folder / "calm").run(calm)
    world.run(calls)
    # The last anchor is step 3's: step 4 is computed again and must meet its digest and its chain.
    calls.anchors = [a for a in calls.anchors if a.step == 3]
    calls.steps_max = 5
    world.run(calls)
    assert calls.records == calm.records
    assert calls.forks == []
    assert [metrics["teacher_kl"] for metrics in calls.metrics] == [
        metrics["teacher_kl"] for metrics in calm.metrics
    ]


@pytest.fixture
def gradient(model_path, settings, groups_of, teacher_of):
    def compute(algorithm: DistillSettings, tokens_max: int):
        trainer = build_trainer(model_path, replace(settings, algorithm=algorithm), Parallel())
        groups = groups_of(1)
        work = DistillWork(groups, algorithm, Desk(teacher=teacher_of(), device=CPU))
        plan = plan_step(work.shapes(), PlanRules(tokens_max=tokens_max), seed=1, step=1)
        update = plan.updates[0]
        work.prepare(trainer.policy.model, [update.ranks[0]])
        trainer.policy.zero_gradients()
        totals = Totals()
        accumulate_gradients(trainer, work, update, totals)
        flat = torch.cat([p.grad.flatten() for p in trainer.policy.masters.values()])
        return flat, totals.local()[0], work

    return compute


@pytest.mark.parametrize("changes", [{}, {"kl_discount": 0.5, "reward_coefficient": 0.3}])
def test_one_micro_batch_equals_one_per_sample(gradient, algorithm, changes) -> None:
    chosen = replace(algorithm, **changes)
    whole, sums, _ = gradient(chosen, 4096)
    apart, apart_sums, _ = gradient(chosen, 1)
    assert float(whole.norm()) > 0
    assert float((whole - apart).norm() / whole.norm()) < 1e-5
    assert apart_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_rewards_add_to_what_the_teacher_says(gradient, algorithm, groups_of) -> None:
    _, _, alone = gradient(algorithm, 4096)
    _, _, both = gradient(replace(algorithm, reward_coefficient=0.5), 4096)
    for group, without, found in zip(groups_of(1), alone.advantages, both.advantages, strict=True):
        rewards = [t.reward for t in group.trajectories]
        mean = sum(rewards) / len(rewards)
        added = [a - b for a, b in zip(found, without, strict=True)]
        assert added == pytest.approx([0.5 * (reward - mean) for reward in rewards])


def test_a_teacher_that_is_the_policy_gives_no_gradient(
    model_path, settings, groups_of, algorithm
) -> None:
    trainer = build_trainer(model_path, replace(settings, algorithm=algorithm), Parallel())
    teacher = load_frozen(model_path, settings, Parallel())
    work = DistillWork(groups_of(1), algorithm, Desk(teacher=teacher, device=CPU))
    update = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=1, step=1).updates[0]
    work.prepare(trainer.policy.model, [update.ranks[0]])
    trainer.policy.zero_gradients()
    accumulate_gradients(trainer, work, update, Totals())
    # The forward with gradients may differ from the one without in the last bits.
    assert all(float(p.grad.abs().max()) < 1e-6 for p in trainer.policy.masters.values())


@torch.no_grad()
def sample(model: torch.nn.Module, prompts, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    ids, logprobs = torch.tensor(prompts), []
    for _ in range(LENGTH):
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, 0]
        logp = torch.log_softmax(logits, -1)
        token = torch.multinomial(logp.exp(), 1, generator=noise)
        logprobs.append(logp.gather(1, token))
        ids = torch.cat([ids, token], dim=1)
    return ids, torch.cat(logprobs, dim=1)


def make_batch(model: torch.nn.Module, step: int) -> m.Batch:
    prompts = draw_prompts(step, PROMPTS)
    ids, logprobs = sample(model, prompts, step)

    def group(i: int) -> TrajectoryGroup:
        ordinal = (step - 1) * PROMPTS + i
        trajectory = Trajectory(
            ordinal=ordinal,
            sample=0,
            prompt_ids=prompts[i],
            token_ids=tuple(ids[i, -LENGTH:].tolist()),
            actor_logprobs=tuple(logprobs[i].tolist()),
            loss_mask=(1,) * LENGTH,
            spans=(VersionSpan(start=0, end=LENGTH, lineage=0, step=step - 1),),
            rewards={},
            reward=0.0,
            ending="length",
        )
        return TrajectoryGroup(ordinal=ordinal, trajectories=(trajectory,))

    groups = tuple(map(group, range(PROMPTS)))
    return m.Batch(
        step=step,
        ids=tuple((f"t/{group.ordinal}/0",) for group in groups),
        groups=groups,
        cursor=m.Cursor(next_ordinal=step * PROMPTS),
    )


@torch.no_grad()
def exact_kl(model: torch.nn.Module, teacher: torch.nn.Module) -> float:
    """KL(policy || teacher) per token, over the whole vocabulary, along answers to held-out prompts."""
    ids, _ = sample(model, draw_prompts(1000, PROMPTS, held_out=True), 1000)
    own, other = (
        torch.log_softmax(one(input_ids=ids, use_cache=False).logits[:, -LENGTH - 1 : -1], -1)
        for one in (model, teacher)
    )
    return float((own.exp() * (own - other)).sum(-1).mean())


@pytest.fixture
def share_left(taught_world, coordinator) -> Callable[[], tuple[float, list[dict]]]:
    """What a run leaves of the KL to the teacher on held-out prompts, as a share; and its metrics."""

    def run():
        world = taught_world(width=LENGTH)
        optimizer = replace(world.settings.optimizer, learning_rate=1e-2)
        fast = replace(world.settings, optimizer=optimizer, anchor_every_steps=99)
        calls = coordinator(steps_max=STEPS)
        parts = replace(world, settings=fast).parts(calls)
        model = parts.trainer.policy.model
        calls.make = lambda step: make_batch(model, step)
        before = exact_kl(model, parts.teacher)
        run_learner(parts, parts.session.start(1, "here"), world.watch)
        assert calls.committed == STEPS
        return exact_kl(model, parts.teacher) / before, calls.metrics

    return run


def test_the_kl_to_the_teacher_falls(share_left) -> None:
    left, metrics = share_left()
    assert left < SHARE_LEFT_MAX
    assert metrics[-1]["teacher_kl"] < metrics[0]["teacher_kl"]
    assert not [name for name in metrics[-1] if name.startswith("reward")]


def test_with_the_sign_flipped_it_rises(share_left, monkeypatch) -> None:
    distil = distill_work.distil

    def flipped(*args, **kwargs):
        found = distil(*args, **kwargs)
        return replace(found, advantages_C=-found.advantages_C)

    monkeypatch.setattr(distill_work, "distil", flipped)
    left, _ = share_left()
    assert left > 1.0


@pytest.fixture
def copy_of(model_path, tmp_path):
    def copy(name: str, file: str, change: Callable[[dict], None]):
        folder = tmp_path / name
        shutil.copytree(model_path, folder)
        document = json.loads((folder / file).read_text())
        change(document)
        (folder / file).chmod(0o644)
        (folder / file).write_text(json.dumps(document))
        return folder

    return copy


def test_a_teacher_with_a_longer_head_is_taken(model_path, copy_of) -> None:
    padded = copy_of("padded", "config.json", lambda config: config.update(vocab_size=512))
    check_teacher(model_path, padded)
    with pytest.raises(SpecError, match=r"distill.teacher: its vocabulary has \d+ tokens"):
        check_teacher(padded, model_path)


def test_a_teacher_of_other_tokens_is_refused(model_path, copy_of) -> None:
    def swap(document: dict) -> None:
        vocab = document["model"]["vocab"]
        first, second = list(vocab)[:2]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    other = copy_of("other", "tokenizer.json", swap)
    with pytest.raises(SpecError, match="tokenizer and the model's differ in 4 entries"):
        check_teacher(model_path, other)

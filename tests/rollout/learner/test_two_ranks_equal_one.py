"""Two gloo ranks, replicated or sharded: the gradient of one, and a chain that repeats itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_kit import on_two_ranks, spawn
from safetensors.torch import load_file

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.surrogates.importance import Correction
from rollout.errors import RunFailed
from rollout.learner.build import build_reference, build_trainer, load_frozen
from rollout.learner.config.distill import DistillSettings
from rollout.learner.config.policy import RewardKl
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.context import LearnerContext
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.adapter import LoraSettings
from rollout.learner.model.parallel import Parallel, join, whole
from rollout.learner.model.policy import Policy
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import plan_step
from rollout.learner.objectives.registry import objective_of
from rollout.learner.train_step import Trainer, accumulate_gradients, passes_of
from rollout.models.resolve import resolve_model
from rollout.protocol.messages import Batch, DataRow
from rollout.rendering import build_renderer

pytestmark = pytest.mark.process


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its heads of keys, too, can be shared out."""
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2&kv_heads=2"
    return resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path


@dataclass(frozen=True, kw_only=True)
class Found:
    """Gradients before clipping, whole; this rank's sums; numbers that every rank must agree on."""

    gradients: list[np.ndarray]
    sums: dict[str, float]
    known: dict[str, float]


def last_update(parts: LearnerContext, batch: Batch) -> Found:
    """What accumulates in the last update of a step on ``batch``, no update before it taken."""
    trainer, parallel = parts.trainer, parts.parallel
    kind = objective_of(trainer.settings)
    work, _ = kind.build_work(parts, batch)
    rules = replace(kind.plan_rules(trainer.settings, parallel.num_shares), tokens_max=40)
    updates = plan_step(work.shapes(), rules, seed=1, step=1).updates
    passes = [passes_of(one, parallel) for one in updates]
    work.prepare(trainer.policy.model, [[micro for micro, _ in found] for found in passes])
    trainer.policy.zero_gradients()
    totals = Totals()
    accumulate_gradients(trainer, work, updates[-1], totals)
    gradients, norms = zip(*map(gather_gradient, held_by(trainer)), strict=True)
    known = dict(zip(("norm", "critic_norm"), norms, strict=False))
    metrics = work.metrics(1)
    known |= {name: metrics[name] for name in ("explained_variance",) if name in metrics}
    return Found(gradients=list(gradients), sums=totals.local()[0], known=known)


def held_by(trainer: Trainer) -> list[Policy]:
    return [trainer.policy] if trainer.critic is None else [trainer.policy, trainer.critic.held]


def gather_gradient(held: Policy) -> tuple[np.ndarray, float]:
    """Summed over ranks, and its norm."""
    held.sum_gradients()
    flat = torch.cat([whole(p.grad).flatten() for p in held.masters.values()]).numpy()
    return flat, float(held.gradient_norm())


def assert_two_equal_one(
    compute: Callable[[Parallel], Found], *, sharded: bool, sequence: int = 1
) -> None:
    """Each of two ranks has the gradients of one alone; their sums add up to its."""
    alone = compute(Parallel())
    both = on_two_ranks(compute, sharded=sharded, sequence=sequence)
    for of_rank in both:
        for found, wanted in zip(of_rank.gradients, alone.gradients, strict=True):
            assert abs(found - wanted).max() < 1e-5 * abs(wanted).max() + 1e-7
        assert of_rank.known == pytest.approx(alone.known, rel=1e-5, abs=1e-5)
    added = {name: sum(rank.sums.get(name, 0.0) for rank in both) for name in alone.sums}
    assert added == pytest.approx(alone.sums, rel=1e-4, abs=1e-5)


@pytest.fixture
def parts_of(model_path, settings):
    """A learner of an algorithm; ``move`` scales its weights away from the reference."""

    def make(parallel: Parallel, algorithm, *, move: float = 1.0, **more) -> LearnerContext:
        chosen = replace(settings, algorithm=algorithm)
        trainer = build_trainer(model_path, chosen, parallel)
        scale(trainer.policy.masters.values(), move)
        return LearnerContext(
            trainer=trainer,
            session=None,
            place=None,
            reference=build_reference(model_path, chosen, parallel),
            renderer=build_renderer(model_path, "plain"),
            identity={},
            **more,
        )

    return make


def scale(parameters: Iterable[torch.Tensor], factor: float) -> None:
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(factor)


SHARDED = pytest.mark.parametrize("sharded", [False, True])
PROMPTS = pytest.mark.parametrize("prompts", [8, 3])


@SHARDED
@PROMPTS
def test_the_gradient_before_clipping_is_that_of_one_rank(
    parts_of, policy_settings, batch_of, groups_of, sharded, prompts
) -> None:
    loss = GrpoSettings(
        kl_coefficient=0.1, correction=Correction(high=1.5), entropy_coefficient=0.01
    )
    algorithm, batch = replace(policy_settings, loss=loss), batch_of(1, groups_of(1, prompts))
    assert_two_equal_one(lambda p: last_update(parts_of(p, algorithm), batch), sharded=sharded)


@SHARDED
def test_a_kl_in_the_reward_and_whitening_are_those_of_one_rank(
    parts_of, policy_settings, batch_of, groups_of, sharded
) -> None:
    algorithm = replace(
        policy_settings,
        advantage_baseline="None",
        advantage_scale="Whiten",
        reward_kl=RewardKl(coefficient=0.5, per_token=True),
    )
    batch = batch_of(1, groups_of(1, 3))
    assert_two_equal_one(lambda p: last_update(parts_of(p, algorithm), batch), sharded=sharded)


@SHARDED
@PROMPTS
def test_ppos_two_gradients_are_those_of_one_rank(
    parts_of, ppo_settings, batch_of, groups_of, sharded, prompts
) -> None:
    algorithm = replace(ppo_settings, bootstraps=True, epochs=1)
    batch = batch_of(1, groups_of(1, prompts))
    assert_two_equal_one(lambda p: last_update(parts_of(p, algorithm), batch), sharded=sharded)


PREFERENCES = {
    "dpo": PairSettings(loss=DpoSettings(beta=0.5, sft_coefficient=0.2), max_length=32),
    "kto": LabelSettings(loss=KtoSettings(beta=0.5), max_length=32),
    "rm": RewardSettings(max_length=32, seed=3),
}


def preference_batch(count: int) -> Batch:
    rows = tuple(
        DataRow(
            ordinal=n,
            row={
                "messages": [{"role": "user", "content": f"{n}+{n}" + "=" * (n % 4)}],
                "answer": str(2 * n),
                "chosen": str(2 * n),
                "rejected": "?" * (1 + n % 3),
                "label": n % 2 == 0,
            },
        )
        for n in range(count)
    )
    return Batch(step=1, rows=rows)


@SHARDED
@pytest.mark.parametrize("count", [7, 1])
@pytest.mark.parametrize("name", PREFERENCES)
def test_the_gradient_of_preferences_is_that_of_one_rank(parts_of, name, sharded, count) -> None:
    algorithm, batch = PREFERENCES[name], preference_batch(count)
    assert_two_equal_one(
        lambda p: last_update(parts_of(p, algorithm, move=0.8), batch), sharded=sharded
    )


@SHARDED
@PROMPTS
def test_the_gradient_towards_a_teacher_is_that_of_one_rank(
    parts_of, model_path, settings, batch_of, groups_of, sharded, prompts
) -> None:
    algorithm = DistillSettings(
        loss=GrpoSettings(),
        old_logprobs="Learner",
        temperature=1.0,
        width=8,
        kl_discount=0.5,
        reward_coefficient=0.3,
        epochs=2,
    )
    batch = batch_of(1, groups_of(1, prompts))

    def compute(parallel: Parallel) -> Found:
        teacher = load_frozen(model_path, replace(settings, algorithm=algorithm), parallel)
        scale(teacher.parameters(), 1.2)
        return last_update(parts_of(parallel, algorithm, teacher=teacher), batch)

    assert_two_equal_one(compute, sharded=sharded)


@SHARDED
def test_a_rank_without_work_takes_part_all_the_same(
    parts_of, policy_settings, batch_of, groups_of, sharded
) -> None:
    batch = batch_of(3, groups_of(3, prompts=1, group=2))
    assert_two_equal_one(
        lambda p: last_update(parts_of(p, policy_settings), batch), sharded=sharded
    )


@pytest.mark.parametrize(
    ("name", "sharded"),
    [
        ("grpo", True),
        ("grpo", False),
        ("dpo", True),
        ("rm", False),
        pytest.param("kto", True, marks=pytest.mark.slow),
    ],
)
def test_two_ranks_that_share_each_sequence_have_the_gradient_of_one(
    parts_of, policy_settings, batch_of, groups_of, name, sharded
) -> None:
    if name == "grpo":
        loss = GrpoSettings(kl_coefficient=0.1, entropy_coefficient=0.01)
        algorithm, batch = replace(policy_settings, loss=loss), batch_of(1, groups_of(1, 3))
    else:
        algorithm, batch = PREFERENCES[name], preference_batch(3)
    assert_two_equal_one(
        lambda p: last_update(parts_of(p, algorithm, move=0.8), batch), sharded=sharded, sequence=2
    )


def live(rank, world, calls, sharded, sequence=1):
    """A whole learner life; rank 0 returns the coordinator's records."""
    parallel = join(sharded=sharded, sequence=sequence)
    parts = replace(world, parallel=parallel).parts(calls if rank == 0 else None)
    run_learner(parts, parts.session.start(1, "here"), Watch())
    parallel.close()
    return calls


@pytest.fixture
def world_of(world, ppo_settings):
    """The world of an algorithm, by its name."""
    ppo = replace(world, settings=replace(world.settings, algorithm=ppo_settings))
    return {"grpo": world, "ppo": ppo}.__getitem__


@pytest.mark.parametrize(
    ("sharded", "algorithm"),
    [
        (False, "grpo"),
        (True, "ppo"),
        pytest.param(True, "grpo", marks=pytest.mark.slow),
        pytest.param(False, "ppo", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_replay_and_restore_to_the_same_chain(
    world_of, coordinator, sharded, algorithm
) -> None:
    """Quick: each algorithm and each way to hold the weights once; sharded GRPO also in test_an_adapter_is_sharded.py."""
    world = world_of(algorithm)
    calm = spawn(live, world, coordinator(steps_max=4), sharded)[0]
    assert calm.committed == 4
    again = replace(world, folder=world.folder / "again")
    calls = spawn(live, again, coordinator(steps_max=2), sharded)[0]
    calls.anchors.clear()
    calls.steps_max = 3
    replayed = spawn(live, again, calls, sharded)[0]
    replayed.steps_max = 4
    restored = spawn(live, again, replayed, sharded)[0]
    assert restored.records == calm.records
    assert not restored.forks


def test_two_ranks_that_share_each_sequence_replay_to_the_same_chain(world, coordinator) -> None:
    world = replace(world, settings=replace(world.settings, activation_checkpointing=True))
    calls = spawn(live, world, coordinator(steps_max=2), True, 2)[0]
    before = dict(calls.records)
    calls.anchors.clear()
    again = spawn(live, world, calls, True, 2)[0]
    assert again.records == before
    assert not again.forks


def test_two_ranks_train_one_adapter(world, coordinator) -> None:
    lora = LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp"))
    world = replace(world, settings=replace(world.settings, lora=lora))
    calm = spawn(live, world, coordinator(steps_max=3), False)[0]
    again = replace(world, folder=world.folder / "again")
    calls = spawn(live, again, coordinator(steps_max=2), False)[0]
    calls.steps_max = 3
    restored = spawn(live, again, calls, False)[0]
    assert restored.records == calm.records
    assert not restored.forks


def test_sharded_bf16_ranks_replay_to_the_same_chain(world, coordinator) -> None:
    world = replace(world, settings=replace(world.settings, dtype="BFloat16"))
    calls = spawn(live, world, coordinator(steps_max=2), True)[0]
    before = dict(calls.records)
    calls.anchors.clear()
    again = spawn(live, world, calls, True)[0]
    assert again.records == before
    assert not again.forks


def test_one_rank_replays_what_two_committed_as_a_logical_lineage(world, coordinator) -> None:
    calls = spawn(live, world, coordinator(steps_max=4), False)[0]
    calls.steps_max = 5
    world.run(calls)
    assert calls.committed == 5
    assert calls.records[5].lineage == 1


def test_a_failure_of_rank_zero_reaches_every_rank(settings) -> None:
    def work(rank):
        parallel = join(sharded=False)

        def fail():
            raise RunFailed("the disk is gone")

        try:
            parallel.on_main(fail, int)
        except RunFailed as error:
            return str(error)
        finally:
            parallel.close()

    said = spawn(work)
    assert said[0] == "the disk is gone"
    assert "rank 0 of the learner failed: RunFailed: the disk is gone" in said[1]


def test_a_sharded_anchor_holds_whole_tensors(world, coordinator) -> None:
    calls = spawn(live, world, coordinator(steps_max=3), True)[0]
    parts = world.parts(calls)
    shapes = {name: p.shape for name, p in parts.trainer.policy.masters.items()}
    weights = load_file(parts.store.path(calls.anchors[-1].objects["weights"]))
    assert {name: w.shape for name, w in weights.items()} == shapes

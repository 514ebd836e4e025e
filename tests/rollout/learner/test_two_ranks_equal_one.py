"""Two gloo ranks, replicated or sharded: the gradient of one, and a chain that repeats itself."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from rollout.algorithms.dpo import DpoSettings
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.importance import Correction
from rollout.algorithms.kto import KtoSettings
from rollout.coordinator.messages import Batch, DataRow
from rollout.errors import RunFailed
from rollout.learner.adapter import LoraSettings
from rollout.learner.build import build_reference, build_trainer, load_frozen
from rollout.learner.distill_settings import DistillSettings
from rollout.learner.kinds import kind_of
from rollout.learner.loop import Watch, run_learner
from rollout.learner.parallel import Parallel, join, whole
from rollout.learner.parts import LearnerParts
from rollout.learner.plan import PlanRules, micro_batches_of, plan_step
from rollout.learner.policy_settings import RewardKl
from rollout.learner.policy_work import Place, PolicyWork
from rollout.learner.ppo_work import Helpers, PpoWork
from rollout.learner.preference_settings import LabelSettings, PairSettings, RewardSettings
from rollout.learner.step import accumulate_gradients
from rollout.learner.work import Totals
from rollout.rendering import build_renderer

pytestmark = pytest.mark.process

RANKS = 2


def spawn(work, *args, ranks: int = RANKS) -> list:
    """``work(rank, *args)`` in forked processes that torchrun could have started; their results."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child(rank: int) -> None:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        try:
            queue.put((rank, work(rank, *args), ""))
        except BaseException:  # noqa: BLE001 - handed to the test process
            queue.put((rank, None, traceback.format_exc()))

    processes = [context.Process(target=child, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    found = sorted((queue.get() for _ in processes), key=lambda item: item[0])
    for process in processes:
        process.join(30)
    assert not any(error for _, _, error in found), [error for _, _, error in found]
    return [result for _, result, _ in found]


def full_loss() -> GrpoSettings:
    return GrpoSettings(
        kl_coefficient=0.1, correction=Correction(high=1.5), entropy_coefficient=0.01
    )


def compute_gradient(parallel: Parallel, model_path, settings, groups, num_ranks):
    """The summed gradient before clipping, whole, and this rank's totals."""
    trainer = build_trainer(model_path, settings, parallel)
    place = Place(device=parallel.device, skips_silent=not parallel.sharded, gather=parallel.gather)
    reference = build_reference(model_path, settings, parallel)
    work = PolicyWork(groups, settings.algorithm, place, reference)
    rules = PlanRules(tokens_max=40, num_ranks=num_ranks)
    update = plan_step(work.shapes(), rules, seed=1, step=1).updates[0]
    work.prepare(trainer.policy.model, [update.ranks[parallel.rank]])
    trainer.policy.zero_gradients()
    totals = Totals()
    accumulate_gradients(trainer, work, update, totals)
    trainer.policy.sum_gradients()
    masters = trainer.policy.masters.values()
    flat = torch.cat([whole(p.grad).flatten() for p in masters]).numpy()
    return flat, float(trainer.policy.gradient_norm()), totals.local()[0]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("prompts", [8, 3])
def test_the_gradient_before_clipping_is_that_of_one_rank(
    model_path, settings, policy_settings, groups_of, sharded, prompts
) -> None:
    settings = replace(settings, algorithm=replace(policy_settings, loss=full_loss()))
    groups = groups_of(1, prompts=prompts)

    def work(rank):
        parallel = join(sharded=sharded)
        result = compute_gradient(parallel, model_path, settings, groups, RANKS)
        parallel.close()
        return result

    alone, norm, sums = compute_gradient(Parallel(), model_path, settings, groups, 1)
    for flat, norm_of_rank, _ in (both := spawn(work)):
        assert abs(flat - alone).max() < 1e-5 * abs(alone).max() + 1e-7
        assert norm_of_rank == pytest.approx(norm, rel=1e-5)
    added = {name: both[0][2][name] + both[1][2][name] for name in sums}
    assert added == pytest.approx(sums, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_kl_in_the_reward_and_whitening_are_those_of_one_rank(
    model_path, settings, policy_settings, groups_of, sharded
) -> None:
    algorithm = replace(
        policy_settings,
        advantage_baseline="None",
        advantage_scale="Whiten",
        reward_kl=RewardKl(coefficient=0.5, per_token=True),
    )
    settings = replace(settings, algorithm=algorithm)
    groups = groups_of(1, prompts=3)

    def work(rank):
        parallel = join(sharded=sharded)
        result = compute_gradient(parallel, model_path, settings, groups, RANKS)
        parallel.close()
        return result

    alone, norm, _ = compute_gradient(Parallel(), model_path, settings, groups, 1)
    for flat, norm_of_rank, _ in spawn(work):
        assert abs(flat - alone).max() < 1e-5 * abs(alone).max() + 1e-7
        assert norm_of_rank == pytest.approx(norm, rel=1e-5)


def compute_ppo_gradients(parallel: Parallel, model_path, settings, groups, num_ranks):
    """Summed gradients of policy and critic, whole, of the second of two mini-batches; the totals."""
    trainer = build_trainer(model_path, settings, parallel)
    algorithm, reference = settings.algorithm, build_reference(model_path, settings, parallel)
    helpers = Helpers(critic=trainer.critic.model, reference=reference, parallel=parallel)
    work = PpoWork(groups, replace(algorithm, epochs=1), helpers, kl_coefficient=0.05)
    rules = PlanRules(tokens_max=40, num_ranks=num_ranks, mini_batches=2)
    plan = plan_step(work.shapes(), rules, seed=1, step=1)
    passes = [
        micro_batches_of(update, parallel.rank, aligned=parallel.sharded) for update in plan.updates
    ]
    work.prepare(trainer.policy.model, [[micro for micro, _ in found] for found in passes])
    trainer.policy.zero_gradients()
    totals = Totals()
    accumulate_gradients(trainer, work, plan.updates[1], totals)
    flats = []
    for held in (trainer.policy, trainer.critic.held):
        held.sum_gradients()
        masters = held.masters.values()
        flats.append(torch.cat([whole(p.grad).flatten() for p in masters]).numpy())
    return *flats, totals.local()[0], work.metrics(1)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("prompts", [8, 3])
def test_ppos_two_gradients_are_those_of_one_rank(
    model_path, settings, ppo_settings, groups_of, sharded, prompts
) -> None:
    settings = replace(settings, algorithm=replace(ppo_settings, bootstraps=True))
    groups = groups_of(1, prompts=prompts)

    def work(rank):
        parallel = join(sharded=sharded)
        result = compute_ppo_gradients(parallel, model_path, settings, groups, RANKS)
        parallel.close()
        return result

    policy, critic, sums, metrics = compute_ppo_gradients(
        Parallel(), model_path, settings, groups, 1
    )
    for policy_of_rank, critic_of_rank, _, metrics_of_rank in (both := spawn(work)):
        assert abs(policy_of_rank - policy).max() < 1e-5 * abs(policy).max() + 1e-7
        assert abs(critic_of_rank - critic).max() < 1e-5 * abs(critic).max() + 1e-7
        assert metrics_of_rank["explained_variance"] == pytest.approx(
            metrics["explained_variance"], abs=1e-5
        )
    added = {name: both[0][2][name] + both[1][2][name] for name in sums}
    assert added == pytest.approx(sums, rel=1e-4, abs=1e-5)


PREFERENCES = {
    "dpo": PairSettings(loss=DpoSettings(beta=0.5, sft_coefficient=0.2), max_length=32),
    "kto": LabelSettings(loss=KtoSettings(beta=0.5), max_length=32),
    "rm": RewardSettings(max_length=32, seed=3),
}


def compute_preference_gradient(parallel: Parallel, model_path, settings, num_ranks, count):
    """The summed gradient of one update on ``count`` rows, the policy away from its reference; the totals."""
    trainer = build_trainer(model_path, settings, parallel)
    with torch.no_grad():
        for parameter in trainer.policy.masters.values():
            parameter.mul_(0.8)
    parts = LearnerParts(
        trainer=trainer,
        session=None,
        place=None,
        reference=build_reference(model_path, settings, parallel),
        renderer=build_renderer(model_path, "plain"),
        identity={},
    )
    return gradient_of(parts, Batch(step=1, rows=preference_rows(count)), num_ranks)


def gradient_of(parts: LearnerParts, batch: Batch, num_ranks: int):
    """The summed gradient of a batch's only update, whole, and this rank's totals."""
    trainer, parallel = parts.trainer, parts.parallel
    work, _ = kind_of(trainer.settings).build_work(parts, batch)
    update = plan_step(
        work.shapes(), PlanRules(tokens_max=40, num_ranks=num_ranks), seed=1, step=1
    ).updates[0]
    found = micro_batches_of(update, parallel.rank, aligned=parallel.sharded)
    work.prepare(trainer.policy.model, [[micro for micro, _ in found]])
    trainer.policy.zero_gradients()
    totals = Totals()
    accumulate_gradients(trainer, work, update, totals)
    trainer.policy.sum_gradients()
    masters = trainer.policy.masters.values()
    flat = torch.cat([whole(p.grad).flatten() for p in masters]).numpy()
    return flat, totals.local()[0]


def compute_distilled_gradient(parallel: Parallel, model_path, settings, num_ranks, groups):
    """The summed gradient of one update towards a teacher that is a little more certain; the totals."""
    teacher = load_frozen(model_path, settings, parallel)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(1.2)
    parts = LearnerParts(
        trainer=build_trainer(model_path, settings, parallel),
        session=None,
        place=None,
        reference=None,
        teacher=teacher,
        renderer=None,
        identity={},
    )
    return gradient_of(parts, Batch(step=1, groups=groups), num_ranks)


def preference_rows(count: int) -> tuple[DataRow, ...]:
    return tuple(
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


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("count", [7, 1])
@pytest.mark.parametrize("algorithm", PREFERENCES)
def test_the_gradient_of_preferences_is_that_of_one_rank(
    model_path, settings, algorithm, sharded, count
) -> None:
    settings = replace(settings, algorithm=PREFERENCES[algorithm])

    def work(rank):
        parallel = join(sharded=sharded)
        result = compute_preference_gradient(parallel, model_path, settings, RANKS, count)
        parallel.close()
        return result

    alone, sums = compute_preference_gradient(Parallel(), model_path, settings, 1, count)
    both = spawn(work)
    for flat, _ in both:
        assert abs(flat - alone).max() < 1e-5 * abs(alone).max() + 1e-7
    added = {name: sum(of_rank.get(name, 0.0) for _, of_rank in both) for name in sums}
    assert added == pytest.approx(sums, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("prompts", [8, 3])
def test_the_gradient_towards_a_teacher_is_that_of_one_rank(
    model_path, settings, groups_of, sharded, prompts
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
    settings, groups = replace(settings, algorithm=algorithm), groups_of(1, prompts=prompts)

    def work(rank):
        parallel = join(sharded=sharded)
        result = compute_distilled_gradient(parallel, model_path, settings, RANKS, groups)
        parallel.close()
        return result

    alone, sums = compute_distilled_gradient(Parallel(), model_path, settings, 1, groups)
    both = spawn(work)
    for flat, _ in both:
        assert abs(flat - alone).max() < 1e-5 * abs(alone).max() + 1e-7
    added = {name: sum(of_rank.get(name, 0.0) for _, of_rank in both) for name in sums}
    assert added == pytest.approx(sums, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_rank_without_work_takes_part_all_the_same(
    model_path, settings, groups_of, sharded
) -> None:
    groups = groups_of(3, prompts=1, group=2)

    def work(rank):
        parallel = join(sharded=sharded)
        result = compute_gradient(parallel, model_path, settings, groups, RANKS)
        parallel.close()
        return result

    alone, _, _ = compute_gradient(Parallel(), model_path, settings, groups, 1)
    for flat, _, _ in spawn(work):
        assert abs(flat - alone).max() < 1e-5 * abs(alone).max() + 1e-7


def live(rank, world, calls, sharded):
    """A whole learner life; rank 0 returns the coordinator's records."""
    parallel = join(sharded=sharded)
    parts = replace(world, parallel=parallel).parts(calls if rank == 0 else None)
    run_learner(parts, parts.session.start(1, "here"), Watch())
    parallel.close()
    return calls


@pytest.fixture
def world_of(world, ppo_settings):
    """The world of an algorithm, by its name."""
    ppo = replace(world, settings=replace(world.settings, algorithm=ppo_settings))
    return {"grpo": world, "ppo": ppo}.__getitem__


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("sharded", [False, True])
def test_two_ranks_replay_and_restore_to_the_same_chain(
    world_of, coordinator, sharded, algorithm
) -> None:
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
            parallel.on_main(fail)
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

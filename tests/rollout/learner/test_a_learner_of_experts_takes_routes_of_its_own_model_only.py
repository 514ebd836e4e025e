"""A learner of a mixture of experts: routes of another model end its step by name; ranks and restarts change nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from rank_kit import on_two_ranks

from rollout.errors import RunFailed
from rollout.learner.build import build_trainer
from rollout.learner.context import LearnerContext
from rollout.learner.model.adapter import LoraSettings
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import Parallel, whole
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import micro_batches_of, plan_step
from rollout.learner.objectives.registry import objective_of
from rollout.learner.train_step import accumulate_gradients
from rollout.models.experts.families import ExpertShape
from rollout.models.resolve import resolve_model
from rollout.protocol.messages import Batch
from rollout.types import Trajectory

SHAPE = ExpertShape(layers=2, experts=4, top_k=2)
STEPS = 5


@pytest.fixture(scope="module")
def mixture():
    return resolve_model("rollout://tiny-qwen3-moe?hidden=32&layers=2&heads=2&intermediate=32").path


@pytest.fixture
def routed_batch(batch_of):
    """A batch whose samples tell routes that no gate has chosen, those of the prompt the same in a group."""

    def chosen(draw: random.Random, positions: int) -> bytes:
        rows = (draw.sample(range(SHAPE.experts), SHAPE.top_k) for _ in range(positions * 2))
        return b"".join(map(bytes, rows))

    def with_routes(made: Trajectory, prompt: bytes, draw: random.Random) -> Trajectory:
        told = prompt + chosen(draw, len(made.token_ids) - 1)
        return replace(made, routes=replace(SHAPE.empty(), chosen=told))

    def make(step: int) -> Batch:
        draw, batch = random.Random(step), batch_of(step)
        groups = []
        for group in batch.groups:
            prompt = chosen(draw, len(group.trajectories[0].prompt_ids))
            routed = tuple(with_routes(one, prompt, draw) for one in group.trajectories)
            groups.append(replace(group, trajectories=routed))
        return msgspec.structs.replace(batch, groups=tuple(groups))

    return make


@pytest.fixture
def of_experts(world, mixture):
    return replace(world, model_path=mixture)


def planted(batch: Batch, routes) -> Batch:
    """The batch with other routes in its last sample."""
    *groups, last = batch.groups
    *samples, sample = last.trajectories
    routes = routes(sample.routes) if callable(routes) else routes
    last = replace(last, trajectories=(*samples, replace(sample, routes=routes)))
    return msgspec.structs.replace(batch, groups=(*groups, last))


WRONG = {
    "no such expert": (lambda it: replace(it, chosen=it.chosen[:-1] + b"\4"), "name expert 4"),
    "one twice": (lambda it: replace(it, chosen=it.chosen[:-2] + b"\1\1"), "one expert twice"),
    "too few": (lambda it: replace(it, chosen=it.chosen[:-4]), "positions before its last"),
    "other layers": (lambda it: replace(it, num_layers=1), "1 layers x 2 experts"),
    "none": (UNSET, "its experts were not told"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_routes_that_are_not_of_the_policy_end_the_step_by_name(
    kind, of_experts, coordinator, routed_batch
):
    routes, reason = WRONG[kind]
    calls = coordinator(1, make=lambda step: planted(routed_batch(step), routes))

    with pytest.raises(RunFailed, match=rf"step 1: group 3, sample 3: .*{reason}.*new run"):
        of_experts.run(calls)

    assert not calls.records


def test_a_dense_policy_takes_no_routes(world, coordinator, routed_batch):
    with pytest.raises(RunFailed, match=r"sample 0: it tells experts: expected none"):
        world.run(coordinator(1, make=routed_batch))


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2, alpha=4, targets=("Attention",))])
def test_a_learner_that_starts_again_goes_on_as_if_it_had_not(
    lora, of_experts, coordinator, routed_batch, tmp_path
):
    world = replace(of_experts, settings=replace(of_experts.settings, lora=lora))
    calm, halted = coordinator(STEPS, make=routed_batch), coordinator(4, make=routed_batch)
    replace(world, folder=tmp_path / "calm").run(calm)
    again = replace(world, folder=tmp_path / "again")
    again.run(halted)

    halted.steps_max = STEPS
    again.run(halted)

    assert halted.anchors
    assert halted.chain() == calm.chain()
    assert not halted.forks


def test_other_routes_of_the_same_tokens_are_another_chain_and_other_weights(
    of_experts, coordinator, routed_batch, tmp_path
):
    def turned(step: int) -> Batch:
        return planted(routed_batch(step), lambda it: replace(it, chosen=it.chosen[::-1]))

    as_told, other = (coordinator(1, make=make) for make in (routed_batch, turned))
    for name, calls in (("told", as_told), ("other", other)):
        replace(of_experts, folder=tmp_path / name).run(calls)

    assert as_told.chain() != other.chain()
    assert as_told.records[1].version.digest != other.records[1].version.digest


@pytest.mark.process
@pytest.mark.parametrize("sharded", [False, True])
def test_two_ranks_have_the_gradient_of_one(sharded, mixture, settings, routed_batch):
    batch = routed_batch(1)

    def compute(parallel: Parallel) -> list[np.ndarray]:
        return gradients_of(build(mixture, settings, parallel), batch)

    alone, both = compute(Parallel()), on_two_ranks(compute, sharded=sharded)

    for of_rank in both:
        for found, wanted in zip(of_rank, alone, strict=True):
            assert abs(found - wanted).max() < 1e-5 * abs(wanted).max() + 1e-7


def build(path, settings, parallel: Parallel) -> LearnerContext:
    apply_numerics(threads=1, exact=True)
    return LearnerContext(
        trainer=build_trainer(path, settings, parallel),
        session=None,
        place=None,
        reference=None,
        renderer=None,
        identity={},
    )


def gradients_of(parts: LearnerContext, batch: Batch) -> list[np.ndarray]:
    """Of one update over the batch in several rows, summed over ranks."""
    trainer, parallel = parts.trainer, parts.parallel
    kind = objective_of(trainer.settings)
    work, _ = kind.build_work(parts, batch)
    rules = replace(kind.plan_rules(trainer.settings, parallel.world_size), tokens_max=40)
    (update,) = plan_step(work.shapes(), rules, seed=1, step=1).updates
    work.prepare(
        trainer.policy.model,
        [[micro for micro, _ in micro_batches_of(update, parallel.rank, aligned=parallel.sharded)]],
    )
    trainer.policy.zero_gradients()
    accumulate_gradients(trainer, work, update, Totals())
    trainer.policy.sum_gradients()
    return [whole(one.grad).flatten().numpy() for one in trainer.policy.masters.values()]

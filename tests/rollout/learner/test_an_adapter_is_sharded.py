"""LoRA with FSDP2 on two gloo ranks: the gradients and weights of one rank, and one chain through kills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from rank_kit import RANKS, on_two_ranks
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.learner.build import build_trainer
from rollout.learner.checkpoint import state_tensors
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.config.sft import SftSettings
from rollout.learner.context import LearnerContext
from rollout.learner.forward.packed_rows import GroupTokens
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.adapter import AdapterOff, LoraSettings
from rollout.learner.model.parallel import Parallel, whole
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import PlanRules, micro_batches_of, plan_step
from rollout.learner.objectives.preference.reference_cache import ReferenceCache
from rollout.learner.objectives.preference.reference_store import ReferenceStore
from rollout.learner.objectives.registry import objective_of
from rollout.learner.train_step import accumulate_gradients
from rollout.protocol.messages import Batch, Cursor, DataRow
from rollout.rendering import build_renderer
from rollout.types import WeightVersion
from rollout.weights.digest import digest_tensors

pytestmark = pytest.mark.process

LORA = LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp"))
ALGORITHMS = {
    "sft": SftSettings(loss="CompletionOnly", packing=True, max_length=32),
    "dpo": PairSettings(loss=DpoSettings(beta=0.5, sft_coefficient=0.2), max_length=32),
    "kto": LabelSettings(loss=KtoSettings(beta=0.5), max_length=32),
    "rm": RewardSettings(max_length=32, seed=3),
}


def make_rows(count: int) -> tuple[DataRow, ...]:
    def row(n: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"{n}+{n}" + "=" * (n % 4)}]
        told = {"answer": str(2 * n), "chosen": str(2 * n), "rejected": "?" * (1 + n % 3)}
        return {"messages": messages, **told, "label": n % 2 == 0}

    return tuple(DataRow(ordinal=n, row=row(n)) for n in range(count))


def build_moved(parallel: Parallel, model_path, settings) -> LearnerContext:
    """A learner whose adapter already says something (B is no longer zero)."""
    trainer = build_trainer(model_path, settings, parallel)
    draw = torch.Generator().manual_seed(5)
    full = trainer.policy.full_masters()
    trainer.policy.load_masters(
        {n: t + 0.05 * torch.randn(t.shape, generator=draw) for n, t in full.items()}
    )
    return LearnerContext(
        trainer=trainer,
        session=None,
        place=None,
        reference=AdapterOff(trainer.policy.model),
        renderer=build_renderer(model_path, "plain"),
        identity={},
    )


def step_on(parallel: Parallel, model_path, settings, batch: Batch, num_ranks: int):
    """Gradient, its norm, and the weights after one update, whole; sums of this rank."""
    parts = build_moved(parallel, model_path, settings)
    trainer = parts.trainer
    work, _ = objective_of(settings).build_work(parts, batch)
    rules = PlanRules(tokens_max=40, num_ranks=num_ranks)
    update = plan_step(work.shapes(), rules, seed=1, step=1).updates[0]
    found = micro_batches_of(update, parallel.rank, aligned=parallel.sharded)
    work.prepare(trainer.policy.model, [[micro for micro, _ in found]])
    trainer.policy.zero_gradients()
    totals = Totals()
    accumulate_gradients(trainer, work, update, totals)
    trainer.policy.sum_gradients()
    norm = float(trainer.policy.gradient_norm())
    masters = trainer.policy.masters
    gradient = {n: whole(p.grad).clone().numpy() for n, p in masters.items()}
    trainer.optimizer.step()
    weights = {n: t.float().numpy() for n, t in trainer.policy.weights().items()}
    return gradient, norm, weights, totals.local()[0]


CASES = [
    *(
        (algorithm, count, "Float32", True)
        for algorithm in ("grpo", *ALGORITHMS)
        for count in (7, 1)
    ),
    ("grpo", 7, "BFloat16", True),
    ("dpo", 7, "Float32", False),
]


@pytest.mark.parametrize(("algorithm", "count", "dtype", "reshards"), CASES)
def test_gradients_and_weights_are_those_of_one_rank(
    model_path, settings, policy_settings, groups_of, batch_of, algorithm, count, dtype, reshards
) -> None:
    chosen = {
        "grpo": replace(policy_settings, loss=GrpoSettings(kl_coefficient=0.1)),
        **ALGORITHMS,
    }[algorithm]
    sgd = replace(settings.optimizer, kind="sgd", learning_rate=0.1)
    settings = replace(settings, algorithm=chosen, lora=LORA, dtype=dtype, optimizer=sgd)
    batch = Batch(step=1, rows=make_rows(count))
    if algorithm == "grpo":
        batch = batch_of(1, groups_of(1, prompts=count))

    def work(place: Parallel) -> Any:
        return step_on(replace(place, reshards=reshards), model_path, settings, batch, RANKS)

    both = on_two_ranks(work)
    gradient, norm, weights, sums = step_on(Parallel(), model_path, settings, batch, 1)

    # bfloat16: other row shapes round otherwise, about 2^-8 each
    near = 1e-5 if dtype == "Float32" else 2e-2
    for gradient_of_rank, norm_of_rank, weights_of_rank, _ in both:
        assert norm_of_rank == pytest.approx(norm, rel=near)
        largest = max(abs(g).max() for g in gradient.values())
        for name, wanted in gradient.items():
            assert abs(gradient_of_rank[name] - wanted).max() < near * largest + 1e-7, name
        for name, wanted in weights.items():
            assert abs(weights_of_rank[name] - wanted).max() < near * abs(wanted).max() + 1e-6, name
    added = {name: sum(rank[3].get(name, 0.0) for rank in both) for name in sums}
    assert added == pytest.approx(sums, rel=10 * near, abs=10 * near)


def describe(parallel: Parallel, model_path, settings) -> tuple[Any, ...]:
    policy = build_moved(parallel, model_path, settings).trainer.policy
    parameters = dict(policy.model.named_parameters())
    local = {n: p.to_local().numel() for n, p in parameters.items() if isinstance(p, DTensor)}
    dtypes = {(str(p.dtype), p.requires_grad) for p in parameters.values()}
    whole_count = sum(p.numel() for p in parameters.values())
    return set(parameters) == set(local), sum(local.values()), whole_count, dtypes


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_the_frozen_base_is_sharded_too(model_path, settings, dtype) -> None:
    settings = replace(settings, lora=LORA, dtype=dtype)
    frozen = {"Float32": "torch.float32", "BFloat16": "torch.bfloat16"}[dtype]
    for sharded, mine, everything, dtypes in on_two_ranks(
        lambda place: describe(place, model_path, settings)
    ):
        assert sharded
        assert mine <= 0.51 * everything
        assert dtypes == {("torch.float32", True), (frozen, False)}


def live(parallel: Parallel, world, calls):
    """A whole learner life; rank 0 returns the coordinator's records."""
    parts = replace(world, parallel=parallel).parts(calls if parallel.is_main else None)
    if objective_of(world.settings).needs_reference(world.settings.algorithm):
        parts = replace(parts, reference=AdapterOff(parts.trainer.policy.model))
    run_learner(parts, parts.session.start(1, "here"), Watch())
    return calls, {name: t.numel() for name, t in state_tensors(parts.trainer).items()}


def rows_of_step(step: int) -> Batch:
    ordinals = range(4 * step, 4 * step + 4)
    rows = make_rows(4 * step + 4)[4 * step :]
    ids = tuple((f"r/{n}",) for n in ordinals)
    return Batch(step=step, ids=ids, rows=rows, cursor=Cursor(next_ordinal=ordinals.stop))


@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [
        ("grpo", "BFloat16"),
        ("dpo", "Float32"),
        pytest.param("grpo", "Float32", marks=pytest.mark.slow),
        pytest.param("rm", "BFloat16", marks=pytest.mark.slow),
    ],
)
def test_a_sharded_adapter_replays_and_restores_to_the_same_chain(
    world, coordinator, policy_settings, algorithm, dtype
) -> None:
    """Quick: each type once, with a policy and with pairs; what rm computes there, test_gradients_and_weights_are_those_of_one_rank."""
    chosen = {
        "grpo": replace(policy_settings, loss=GrpoSettings(kl_coefficient=0.1)),
        **ALGORITHMS,
    }[algorithm]
    settings = replace(world.settings, lora=LORA, algorithm=chosen, dtype=dtype)
    world = replace(world, settings=settings)
    make = {} if algorithm == "grpo" else {"make": rows_of_step}
    (calm, of_one), (_, of_other) = on_two_ranks(
        lambda place: live(place, world, coordinator(steps_max=4, **make))
    )
    assert calm.committed == 4
    again = replace(world, folder=world.folder / "again")
    calls = on_two_ranks(lambda place: live(place, again, coordinator(steps_max=2, **make)))[0][0]
    calls.anchors.clear()
    calls.steps_max = 3
    replayed = on_two_ranks(lambda place: live(place, again, calls))[0][0]
    replayed.steps_max = 4
    restored = on_two_ranks(lambda place: live(place, again, replayed))[0][0]
    assert restored.records == calm.records
    assert not restored.forks
    # each rank hashes its own shards of adapter and optimizer, and they make up the whole
    trained = build_trainer(world.model_path, settings, Parallel()).policy.masters
    name = next(n for n in trained if "lora_A" in n)
    assert {n.split("/")[0] for n in of_one} == set(trained)
    assert of_one[name] + of_other[name] == trained[name].numel()
    served = load_file(world.folder / "objects" / _place(calm.records[4].version))
    assert digest_tensors(served) == calm.records[4].version.digest
    assert not any("lora" in n or "base_layer" in n for n in served)


def sums_of(parallel: Parallel, model_path, settings, path, items) -> tuple[Any, ...]:
    """What a cache before a sharded reference says of this rank's items."""
    parts = build_moved(parallel, model_path, settings)
    store = ReferenceStore(path)
    cache = ReferenceCache(parts.reference, store, parallel, alone=True, lockstep=parallel.sharded)
    micros = [items[parallel.rank :: parallel.world_size]]
    return tuple(tuple(sums.tolist()) for sums in cache.sums(micros))


def test_ranks_that_find_unequally_much_wait_for_no_one(model_path, settings, tmp_path) -> None:
    settings = replace(settings, lora=LORA, algorithm=ALGORITHMS["dpo"])
    items = [
        GroupTokens(prompt_ids=(5, n), completion_ids=((n, 7), (9,) * (1 + n % 3)))
        for n in range(8)
    ]
    wanted = sums_of(Parallel(), model_path, settings, tmp_path / "alone.bin", items)
    found = []
    for path in ("cold.bin", "cold.bin", "halved.bin"):
        if path == "halved.bin":  # all that rank 0 will ask for, nothing of rank 1's
            sums_of(Parallel(), model_path, settings, tmp_path / path, items[::2])
        found.append(
            on_two_ranks(
                lambda place, path=path: sums_of(
                    place, model_path, settings, tmp_path / path, items
                )
            )
        )
    for even, odd in found:
        flat = torch.tensor([[even[n // 2], odd[n // 2]][n % 2] for n in range(8)])
        assert torch.allclose(flat, torch.tensor(wanted), rtol=1e-5)
    assert found[0] == found[1]


def test_replicated_ranks_hold_four_bits_and_give_the_gradient_of_one(model_path, settings) -> None:
    lora = replace(LORA, quantization="NF4")
    settings = replace(settings, algorithm=ALGORITHMS["dpo"], lora=lora)
    batch = Batch(step=1, rows=make_rows(7))
    both = on_two_ranks(
        lambda place: step_on(place, model_path, settings, batch, RANKS), sharded=False
    )
    gradient, norm, _, _ = step_on(Parallel(), model_path, settings, batch, 1)
    largest = max(abs(g).max() for g in gradient.values())
    for gradient_of_rank, norm_of_rank, _, _ in both:
        assert norm_of_rank == pytest.approx(norm, rel=1e-5)
        for name, wanted in gradient.items():
            assert abs(gradient_of_rank[name] - wanted).max() < 1e-5 * largest + 1e-7, name


def _place(version: WeightVersion) -> str:
    digest = version.object.removeprefix("blake3:")
    return f"blake3/{digest[:2]}/{digest}"

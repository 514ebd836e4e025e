"""What training as a service costs beside the same work in one process: 25 M parameters, one thread, turn by turn in one run.

A step is 8 rows of 257 tokens, cross entropy, rank 32 or all weights: through HTTP, book and chain on one side, the learner's
own step with the same adapter, or none, on the other. Samples are 16 completions of 64 tokens: through the service, and of the engine by itself.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout" / "service"))

import numpy as np
import torch
from figures import Figure, level, ratio
from service_kit import RunningService, WireClient, running_services, sequence_datum

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.learner.build import build_trainer
from rollout.learner.config.learner import LearnerSettings
from rollout.learner.config.optimizer import OptimizerSettings, ScheduleSettings
from rollout.learner.config.sft import SftSettings
from rollout.learner.forward.packed_rows import SequenceTokens
from rollout.learner.model.adapter import LoraSettings
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.sft import SftWork
from rollout.learner.train_step import Trainer, run_step
from rollout.service.training.bases import TrainingBase, load_base
from rollout.service.training.trained import ALPHA
from rollout.types import GenerateRequest, SamplingParams, WeightVersion

MODEL = "tiny=rollout://tiny-qwen2?hidden=512&layers=8"
ROWS, TOKENS, RANK = 8, 257, 32
REPEATS, TENANTS, TURNS = 5, 8, 3
SAMPLES, NEW_TOKENS = 16, 64


def measure() -> Iterator[Figure]:
    """Steps and samples against one process, eight models against one, and what an idle one takes."""
    apply_numerics(threads=1, exact=True)
    base = load_base(MODEL)
    with tempfile.TemporaryDirectory() as place:
        yield from asyncio.run(_measure(base, Path(place)))


async def _measure(base: TrainingBase, place: Path) -> list[Figure]:
    async with running_services(base, place) as start:
        running = await start(place / "adapters")
        whole = await start(place / "whole", full_weights=(base.name,))
        return [
            await _steps(running, base),
            await _steps(whole, base, adapter=False),
            await _samples(running, base),
            *[figure async for figure in _tenants(running)],
        ]


def rows(seed: int) -> list[tuple[int, ...]]:
    """The rows of a step."""
    draw = np.random.default_rng(seed)
    return [tuple(draw.integers(3, 250, TOKENS).tolist()) for _ in range(ROWS)]


async def _step(client: WireClient, seed: int) -> float:
    """Seconds of one step, both calls sent before the first answer is asked for."""
    data = [sequence_datum(row) for row in rows(seed)]
    began = time.perf_counter()
    backward, stepped = await client.backward(data), await client.step()
    await client.answer(backward)
    assert "metrics" in await client.answer(stepped)
    return time.perf_counter() - began


def _own_step(trainer: Trainer, seed: int) -> float:
    scored = (0, *([1] * (TOKENS - 1)))
    work = SftWork(
        [SequenceTokens(token_ids=row, scored=scored) for row in rows(seed)], torch.device("cpu")
    )
    began = time.perf_counter()
    plan = plan_step(work.shapes(), PlanRules(tokens_max=8192), seed=1, step=seed + 1)
    run_step(trainer, work, plan, seed + 1)
    return time.perf_counter() - began


def _own_trainer(base: TrainingBase, *, adapter: bool) -> Trainer:
    lora = LoraSettings(rank=RANK, alpha=ALPHA, targets=("Attention", "Mlp"))
    settings = LearnerSettings(
        algorithm=SftSettings(max_length=TOKENS, packing=True, loss="Full"),
        optimizer=OptimizerSettings(kind="adamw", learning_rate=1e-4),
        schedule=ScheduleSettings(),
        max_grad_norm=0.0,
        micro_batch_tokens=8192,
        activation_checkpointing=False,
        dtype="Float32",
        exact=True,
        hash_every_steps=1,
        anchor_every_steps=1,
        seed=1,
        spec_digest="",
        lora=lora if adapter else None,
    )
    return build_trainer(base.folder, settings, Parallel())


async def _steps(running: RunningService, base: TrainingBase, *, adapter: bool = True) -> Figure:
    client, trainer = running.client("steps"), _own_trainer(base, adapter=adapter)
    await client.begin(rank=RANK)
    ours, theirs = [], []
    for turn in range(REPEATS + 1):
        ours.append(await _step(client, turn))
        theirs.append(await asyncio.to_thread(_own_step, trainer, turn))
    what = "steps" if adapter else "steps of all weights"
    return ratio(f"{what}, service : one process", ours[1:], theirs[1:], ">= 0.9")


async def _samples(running: RunningService, base: TrainingBase) -> Figure:
    client = running.client("samples")
    await client.begin(rank=RANK)
    sampler = (await client.answer(await client.save()))["sampling_session_id"]
    engine = await _engine(running, base)
    ours, theirs = [], []
    for turn in range(REPEATS + 1):
        params = {"max_tokens": NEW_TOKENS, "stop": [], "seed": turn}
        began = time.perf_counter()
        ack = await client.sample(sampler, turn, num_samples=SAMPLES, params=params)
        assert len((await client.answer(ack)).sequences) == SAMPLES
        ours.append(time.perf_counter() - began)
        request = GenerateRequest(
            prompt_ids=(5, 6),
            seeds=tuple(range(SAMPLES)),
            sampling=SamplingParams(max_new_tokens=NEW_TOKENS),
        )
        began = time.perf_counter()
        await engine.generate([request])
        theirs.append(time.perf_counter() - began)
    await engine.stop()
    return ratio("samples, service : engine", ours[1:], theirs[1:], ">= 0.9")


async def _engine(running: RunningService, base: TrainingBase) -> EmbeddedEngine:
    (file,) = (running.folder / "weights").iterdir()
    engine = EmbeddedEngine(base.folder)
    digest = file.stem.replace("-", ":")
    await engine.load(WeightVersion(lineage=0, step=0, digest=digest, object=file.name), file)
    return engine


async def _tenants(running: RunningService) -> AsyncIterator[Figure]:
    clients = [running.client(f"tenant-{i}") for i in range(TENANTS)]
    for client in clients:
        await client.begin(rank=RANK)
    await asyncio.gather(*(_step(client, 0) for client in clients))
    tensors = running.desk._memory._models[clients[0].model].state().values()
    idle = sum(tensor.nbytes for tensor in tensors) / 2**20
    yield level("tensors of an idle adapter, moments included", [idle], "MiB", "info")
    together, alone, spreads = [], [], []
    for turn in range(1, TURNS + 1):
        seconds, spread = await _together(clients, turn)
        together.append(seconds)
        spreads.append(spread)
        alone.append(await _each(clients, lambda client, turn=turn: _step(client, turn)))
    yield ratio("eight models at once : one after the other", together, alone, ">= 0.9")
    yield level("slowest : fastest of eight models", spreads, "x", "<= 1.3")


async def _together(clients: list[WireClient], turn: int) -> tuple[float, float]:
    """Seconds until all have made three steps, and of the slowest over those of the fastest."""

    async def three(client: WireClient) -> float:
        began = time.perf_counter()
        for _ in range(3):
            await _step(client, turn)
        return time.perf_counter() - began

    began = time.perf_counter()
    each = await asyncio.gather(*map(three, clients))
    return time.perf_counter() - began, max(each) / min(each)


async def _each(clients: list[WireClient], work: Callable) -> float:
    began = time.perf_counter()
    for client in clients:
        for _ in range(3):
            await work(client)
    return time.perf_counter() - began

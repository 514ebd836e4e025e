"""What a learner computes: two steps on the same synthetic samples or rows, and what is left in the weights."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from configs import Place, build_config

from rollout.data.build import build_source
from rollout.learner.batch_step import take_step
from rollout.learner.build import build_parts
from rollout.learner.checkpoint import Progress
from rollout.learner.model.offload import OffloadedOptimizer
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.plan import encode_plan
from rollout.learner.objectives.registry import build_settings
from rollout.learner.session import Session
from rollout.learner.state_digest import seal_step
from rollout.protocol import messages as m
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan, WeightVersion
from rollout.weights.digest import digest_tensors
from rollout_api.worker import WorkerConfig

STEPS = 2
LOGPROB = -5.5
"""Of a token under a model of 256 that knows nothing."""


def observe_learning(document: Mapping[str, Any], place: Place) -> Any:
    """Where the optimizer's states lie; chain, loss, the plan of each step, and the weights of policy and critic after two steps."""
    config = build_config(document, place)
    (place.folder / "run").mkdir(exist_ok=True)
    parallel = Parallel()
    parts = build_parts(
        config, build_settings(config), parallel, Session(None, "learner", parallel)
    )
    version = WeightVersion(lineage=0, step=0, digest="", object="")
    trainer = parts.trainer
    seen: list[Any] = [_recomputes(trainer.policy.model), str(trainer.policy.dtype)]
    seen.append(isinstance(trainer.optimizer, OffloadedOptimizer))
    progress = Progress(
        lineage=0, step=0, chain="", version=version, cursor=m.Cursor(next_ordinal=0)
    )
    for step in range(1, STEPS + 1):
        done = take_step(parts, progress, build_batch(config, step), plan=None)
        chain = seal_step(parts.trainer, None, progress.chain, done).chain
        seen += [chain, done.metrics["loss"], done.filtered, encode_plan(done.plan)]
        seen.append(_critic_digest(parts))
        progress = Progress(
            lineage=0, step=step, chain=chain, version=version, cursor=m.Cursor(next_ordinal=step)
        )
    return seen


def _recomputes(model: torch.nn.Module) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def _critic_digest(parts: Any) -> str:
    critic = parts.trainer.critic
    return "" if critic is None else digest_tensors(dict(critic.model.state_dict()))


def build_batch(config: WorkerConfig, step: int) -> m.Batch:
    """Two groups, or four rows of the run's own data, the same for every configuration of one size."""
    train = config.spec.train
    assert train is not None
    cursor = m.Cursor(next_ordinal=step)
    if train.algorithm.is_online:
        groups = _groups(step, train.algorithm.num_samples, config.spec.needs_actors)
        ids = tuple(tuple(f"{g.ordinal}/{t.sample}" for t in g.trajectories) for g in groups)
        return m.Batch(step=step, ids=ids, groups=groups, cursor=cursor)
    source = build_source(train.data, target=train.algorithm.traits.row)
    places = range(4 * step - 4, 4 * step)
    rows = tuple(m.DataRow(ordinal=n, row=source.rows([n])[0]) for n in places)
    return m.Batch(step=step, ids=tuple((f"r/{n}",) for n in places), rows=rows, cursor=cursor)


@cache
def _groups(step: int, samples: int, _: bool) -> tuple[TrajectoryGroup, ...]:
    draw = random.Random(step)
    return tuple(_group(draw, step, 2 * step + place, samples) for place in range(2))


def _group(draw: random.Random, step: int, ordinal: int, samples: int) -> TrajectoryGroup:
    prompt = tuple(draw.randrange(250) for _ in range(3))
    made = tuple(_sample(draw, step, ordinal, index, prompt) for index in range(samples))
    return TrajectoryGroup(ordinal=ordinal, trajectories=made)


def _sample(
    draw: random.Random, step: int, ordinal: int, index: int, prompt: tuple[int, ...]
) -> Trajectory:
    """One in four is cut by the limit; actors' probabilities are far enough from the learner's to be clipped."""
    length = 8 if index % 4 == 3 else draw.randint(2, 7)
    reward = float(index % 2) + draw.random() / 8
    return Trajectory(
        ordinal=ordinal,
        sample=index,
        prompt_ids=prompt,
        token_ids=tuple(draw.randrange(250) for _ in range(length)),
        actor_logprobs=tuple(LOGPROB + draw.uniform(-2.5, 2.5) for _ in range(length)),
        loss_mask=(1,) * length,
        spans=(VersionSpan(start=0, end=length, lineage=0, step=step - 1),),
        rewards={"exact-match": reward},
        reward=reward,
        ending="length" if length == 8 else "stop",
    )

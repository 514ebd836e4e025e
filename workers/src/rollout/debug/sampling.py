"""Sample again what a step was trained on: the same versions, prompts and seeds; no training, no rewards.

In ``Exact`` the tokens are those that were recorded, and that is what is checked. Weights that the run
no longer keeps are made again by replay from the anchor before them. Writes nothing into the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rollout.actor.episodes import Episode
from rollout.actor.runner import PlayedTask, RunnerParts, play
from rollout.actor.task_scoring import build_task_scoring
from rollout.actor.turns.rows import row_of
from rollout.coordinator.build import build_plan
from rollout.coordinator.rows import build_rows
from rollout.debug.bench import Bench, advance, begin, open_bench
from rollout.debug.recording import Recording, open_recording
from rollout.engines.registry import build_engine
from rollout.engines.sizes import plan_tasks_max
from rollout.errors import EngineError, SpecError, StoreError
from rollout.models.files import check_model
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol.messages import Batch, Task
from rollout.rendering import build_renderer
from rollout.seams import Engine
from rollout.types import Branch, Trajectory, TrajectoryGroup, WeightVersion
from rollout.weights.mirror import WeightFiles
from rollout.weights.safetensors import safetensors_parts
from rollout_api.worker import WorkerConfig

Line = dict[str, Any]
Key = tuple[int, int]
Rows = Sequence[Trajectory | Branch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A version and the file of its weights. ``replayed``: made again, since the run keeps it no more."""

    version: WeightVersion
    path: Path
    replayed: bool


def sample_again(run_dir: Path, step: int, *, groups_max: int | None = None) -> dict[str, Any]:
    """The completions that ``step`` consumed, sampled again from the versions that they came from.

    ``samples`` are in the order of the batch; ``equal`` says whether tokens are the recorded ones,
    ``logprob_gap`` how far logprobs are from them at most. ``exact`` is what the run promised.
    ``groups_max`` looks at the first so many groups only.
    Raises SpecError, LedgerError, StoreError, DataError or EngineError.
    """
    with (
        open_recording(run_dir) as recording,
        TemporaryDirectory(prefix="rollout-debug-") as scratch,
    ):
        train = recording.config.spec.train
        if train is None or not train.algorithm.is_online:
            raise SpecError("this run trains on rows of data: nothing was sampled for its steps")
        batch = _first(recording.batch(_require(recording, step)), groups_max)
        found = [
            _read_weights(run_dir, recording, version, Path(scratch))
            for version in _versions(recording, batch.groups)
        ]
        episodes = asyncio.run(_sample(_moved(recording.config, Path(scratch)), batch, found))
    exact = recording.config.spec.numerics.mode == "Exact"
    samples = [line for group in batch.groups for line in _compare(group, episodes)]
    return {
        "step": step,
        "versions": [
            {"step": one.version.step, "digest": one.version.digest, "replayed": one.replayed}
            for one in found
        ],
        "exact": exact,
        "equal": all(line["equal"] for line in samples),
        "samples": samples,
    }


def _require(recording: Recording, step: int) -> int:
    recording.record(step)
    return step


def _first(batch: Batch, groups_max: int | None) -> Batch:
    return Batch(step=batch.step, groups=batch.groups[:groups_max])


def _versions(recording: Recording, groups: Sequence[TrajectoryGroup]) -> list[WeightVersion]:
    """The versions that sampled these groups, oldest first."""
    keys = {_version_of(group) for group in groups}
    return [_find_version(recording, key) for key in sorted(keys)]


def _version_of(group: TrajectoryGroup) -> Key:
    found = {
        (span.lineage, span.step)
        for t in group.trajectories
        for row in t.rows
        for span in row.spans
    }
    if len(found) != 1:
        raise SpecError(
            f"ordinal {group.ordinal}: its completions come from {len(found)} versions; only groups of "
            "one version can be sampled again"
        )
    return found.pop()


def _find_version(recording: Recording, key: Key) -> WeightVersion:
    lineage, step = key
    if step == 0:
        initial = recording.ledger.initial()
        assert initial is not None, "a run with a committed step has a first version"
        return initial[0]
    version = recording.record(step).version
    if version.lineage != lineage:
        raise SpecError(
            f"version {step} of lineage {lineage} was given up by a later start of this run; its weights "
            "are not known any more"
        )
    return version


def _read_weights(
    run_dir: Path, recording: Recording, version: WeightVersion, scratch: Path
) -> Weights:
    """The version's file in the run's store, or one made by replay."""
    if version.object and recording.objects.has(version.object):
        path = WeightFiles(recording.objects, scratch / "mirror").path(version.object)
        return Weights(version=version, path=path, replayed=False)
    with open_bench(run_dir) as bench:
        parts = _replay_to(bench, version)
        stored = FilesystemStore(scratch / "objects")
        name = stored.put_parts(safetensors_parts(parts))
    # Deterministic kernels were the learner's; actors sample without that switch.
    torch.use_deterministic_algorithms(mode=False)
    return Weights(version=version, path=stored.path(name), replayed=True)


def _replay_to(bench: Bench, version: WeightVersion) -> dict[str, torch.Tensor]:
    progress = begin(bench, version.step).progress
    while progress.step < version.step:
        progress = advance(bench, progress)[0].progress
    return bench.parts.trainer.policy.weights()


def _moved(config: WorkerConfig, scratch: Path) -> WorkerConfig:
    """The configuration with its logs elsewhere; user code stays where it is."""
    return config.model_copy(update={"layout": _layout(config, scratch)})


def _layout(config: WorkerConfig, scratch: Path) -> Any:
    (scratch / "logs").mkdir(exist_ok=True)
    code = Path(config.layout.run_dir) / "code"
    if code.exists():
        (scratch / "code").symlink_to(code)
    return config.layout.model_copy(update={"run_dir": str(scratch)})


async def _sample(
    config: WorkerConfig, batch: Batch, weights: Sequence[Weights]
) -> dict[Key, Episode | str]:
    """Episodes by (ordinal, sample); a text where an environment failed."""
    check_model(Path(config.resolved.model_path), f"{config.spec.model.uri} of this run")
    engine = build_engine(config, "debug")
    stage = RunnerParts(
        engine=engine,
        renderer=build_renderer(Path(config.resolved.model_path), config.spec.model.chat_template),
        builders=build_task_scoring(config).environment,
        seed=config.spec.seed,
    )
    found: dict[Key, Episode | str] = {}
    await engine.start()
    try:
        for one in weights:
            await _load(engine, one)
            tasks = _build_tasks(config, batch, one.version)
            size = plan_tasks_max(config)
            for start in range(0, len(tasks), size):
                found.update(_by_sample(await play(tasks[start : start + size], stage)))
    finally:
        await engine.stop()
    return found


async def _load(engine: Engine, weights: Weights) -> None:
    digest = await engine.load(weights.version, weights.path)
    if digest != weights.version.digest:
        how = "the replay of this run does not meet its digests here: see rollout debug train-only"
        raise StoreError(
            f"version {weights.version.step} is {weights.version.digest}, loaded was {digest}"
            + (f"; {how}" if weights.replayed else "")
        )


def _build_tasks(config: WorkerConfig, batch: Batch, version: WeightVersion) -> list[Task]:
    rows = build_rows(config)
    plan = build_plan(config, rows)
    key = (version.lineage, version.step)
    ordinals = [group.ordinal for group in batch.groups if _version_of(group) == key]
    return [
        Task(
            task_id=f"t/{ordinal}",
            kind="train",
            ordinal=ordinal,
            row=row,
            num_samples=plan.train.num_samples,
            attempt=1,
            epoch=0,
            lease_seconds=plan.lease_seconds,
            version=version,
            sampling=plan.train.sampling,
        )
        for ordinal, row in zip(ordinals, rows.train(ordinals), strict=True)
    ]


def _by_sample(played: Sequence[PlayedTask]) -> Iterator[tuple[Key, Episode | str]]:
    for one in played:
        if one.failure is not None:
            for sample in range(one.task.num_samples):
                yield (one.task.ordinal, sample), one.failure.message
        for episode in one.episodes:
            yield (episode.ordinal, episode.sample), episode


def _compare(group: TrajectoryGroup, episodes: dict[Key, Episode | str]) -> Iterator[Line]:
    for recorded in group.trajectories:
        again = episodes[group.ordinal, recorded.sample]
        line = {
            "ordinal": group.ordinal,
            "sample": recorded.sample,
            "recorded": recorded.text,
            "reward": recorded.reward,
        }
        if isinstance(again, str):
            raise EngineError(f"ordinal {group.ordinal} could not be sampled again: {again}")
        yield {**line, **_compare_tokens(recorded, again)}


def _compare_tokens(recorded: Trajectory, again: Episode) -> Line:
    """All rows of both, one after the other."""
    rows = again.rows or (row_of(again),)
    equal = _tokens_of(recorded.rows) == _tokens_of(rows)
    gap = None
    if equal:
        pairs = zip(_logprobs_of(recorded.rows), _logprobs_of(rows), strict=True)
        gap = max((abs(a - b) for a, b in pairs), default=0.0)
    return {
        "equal": equal,
        "first_difference": None if equal else _first_difference(recorded.rows, rows),
        "logprob_gap": gap,
        "num_tokens": sum(len(row.token_ids) for row in rows),
        "completion": again.reply,
    }


def _tokens_of(rows: Rows) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(row.prompt_ids, row.token_ids) for row in rows]


def _logprobs_of(rows: Rows) -> list[float]:
    return [one for row in rows for one in row.actor_logprobs]


def _first_difference(recorded: Rows, again: Rows) -> int | None:
    """The index of the first token that differs, counted on from row to row; None where a row's prompt does before."""
    before = 0
    for old, new in zip(recorded, again, strict=False):
        if old.prompt_ids != new.prompt_ids:
            return None
        pairs = zip(old.token_ids, new.token_ids, strict=False)
        shared = min(len(old.token_ids), len(new.token_ids))
        if old.token_ids != new.token_ids:
            return before + next((at for at, (a, b) in enumerate(pairs) if a != b), shared)
        before += shared
    return before

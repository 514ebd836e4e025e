"""A run's actor and learner in one process, without coordinator, ledger and supervisor.

The product's own parts, made from the same configuration file, called in the order in which a real
synchronous run calls them: load the version, play, score, train, seal. From equal configurations it
comes to the chain of the real run, which proves that it does the same work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from rollout.actor.runner import RunnerParts, play
from rollout.actor.scoring import PipelineScorer
from rollout.actor.submitting import finish_task
from rollout.actor.task_scoring import build_task_scoring
from rollout.actor.weight_loader import WeightLoader
from rollout.coordinator.build import build_plan
from rollout.coordinator.plan import RunPlan
from rollout.coordinator.rows import DataRows, build_rows
from rollout.coordinator.rules.batch_selection import is_exhausted
from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.engines.registry import build_engine
from rollout.entrypoints.resolve import resolve
from rollout.learner import hash_chain as chain
from rollout.learner.batch_step import take_step
from rollout.learner.build import build_parts
from rollout.learner.checkpoint import Progress
from rollout.learner.context import LearnerContext
from rollout.learner.forward.memory import keep_freed_memory
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import join
from rollout.learner.objectives.registry import build_settings
from rollout.learner.publish import publish
from rollout.learner.session import Session
from rollout.learner.state_digest import seal_step
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol.messages import Batch, Cursor, DataRow, Task
from rollout.rendering import build_renderer
from rollout.runs.manifest import load_documents
from rollout.runs.prepare import prepare_run
from rollout.runs.resolve import ResolveRequest
from rollout.runs.run_dir import prepare_run_dir
from rollout.supervisor.launch import Launch, build_config, observe_machine
from rollout.types import TrajectoryGroup, WeightVersion
from rollout.weights.mirror import WeightFiles
from rollout_api.worker import WorkerConfig


def plan_config(manifest: Path, run_dir: Path) -> WorkerConfig:
    """What ``rollout run`` would write for this manifest on this machine."""
    prepared = prepare_run(load_documents(manifest)[0])
    spec = prepared.spec.model_dump(mode="json", exclude_none=True)
    wanted = Launch(prepared=prepared, run=prepare_run_dir(run_dir))
    found = resolve(ResolveRequest(spec=spec))
    return build_config(wanted, found, observe_machine(), "http://127.0.0.1:1")


def move_config(config: WorkerConfig, run_dir: Path) -> WorkerConfig:
    """The same run, its files elsewhere."""
    places = {"run_dir": str(run_dir), "objects_dir": str(run_dir / "objects")}
    return config.model_copy(update={"layout": config.layout.model_copy(update=places)})


@dataclass(slots=True, kw_only=True)
class Clock:
    """Seconds by phase of one step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure a block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class InPlace(Executor):
    """Runs what it is given at once, in the caller's thread.

    An engine and a learner that compute in two threads of one process have two OpenMP pools; with more
    threads than processors libgomp stops spinning, and every small parallel loop pays for a wake-up.
    Real runs have a process for each.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it; the future is done."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the caller's, through the future
            done.set_exception(error)
        return done


class Sampling:
    """The actor's half."""

    def __init__(self, config: WorkerConfig, store: FilesystemStore) -> None:
        self.judges = build_task_scoring(config)
        engine = build_engine(config, "actor-0")
        assert isinstance(engine, EmbeddedEngine)
        engine._executor = InPlace()
        renderer = build_renderer(Path(config.resolved.model_path), config.spec.model.chat_template)
        self.stage = RunnerParts(
            engine=engine,
            renderer=renderer,
            builders=self.judges.environment,
            seed=config.spec.seed,
        )
        exact = config.spec.numerics.mode == "Exact"
        self.scorer = PipelineScorer(pipelines=self.judges.pipeline, apart=exact)
        mirror = Path(config.layout.run_dir) / "mirror"
        self.activator = WeightLoader(engine, WeightFiles(store, mirror), lambda _loaded: None)
        self.judges.start()

    async def groups(
        self, tasks: list[Task], version: WeightVersion, clock: Clock
    ) -> tuple[TrajectoryGroup, ...]:
        """The accepted groups of one step."""
        with clock.time("load"):
            await self.activator.activate(version)
        with clock.time("generate"):
            played = await play(tasks, self.stage)
        with clock.time("score"):
            scores = await self.scorer.score(played)
            results = [finish_task(*pair, {}) for pair in zip(played, scores, strict=True)]
        return tuple(
            TrajectoryGroup(ordinal=task.ordinal, trajectories=result.trajectories)
            for task, result in zip(tasks, results, strict=True)
        )


class OneProcess:
    """``step`` takes one whole step of the run; ``phases`` says what the last one took."""

    def __init__(self, config: WorkerConfig) -> None:
        disable_progress_bar()
        keep_freed_memory()
        apply_numerics(threads=config.threads, exact=config.spec.numerics.mode == "Exact")
        parallel = join(sharded=False)
        session = Session(None, "bench", parallel)
        self.parts: LearnerContext = build_parts(config, build_settings(config), parallel, session)
        self.store = FilesystemStore(Path(config.layout.objects_dir))
        self.rows: DataRows = build_rows(config)
        self.plan: RunPlan = build_plan(config, self.rows)
        self.sampling = None if self.plan.train.offline else Sampling(config, self.store)
        self.metrics_file = Path(config.layout.run_dir) / "metrics.jsonl"
        self.progress = self._begin()
        self.phases: dict[str, float] = {}
        self._unused: list[str] = []
        self._bases: tuple[str, ...] = ()

    def _begin(self) -> Progress:
        version = publish(self.parts.trainer.policy.weights(), self.store, lineage=0, step=0)
        link = chain.first_link(self.parts.trainer.settings.spec_digest, version.digest)
        return Progress(
            lineage=0, step=0, chain=link, version=version, cursor=Cursor(next_ordinal=0)
        )

    async def step(self) -> Mapping[str, Any]:
        """The step after ``progress``; returns its metrics, as recorded."""
        clock, before = Clock(), self.progress
        with clock.time("data"):
            start = before.cursor.next_ordinal
            ordinals = range(start, start + self.plan.train.tasks_per_step)
            rows = self.rows.train(ordinals)
        batch = await self._batch(ordinals, rows, clock)
        with clock.time("train"):
            done = take_step(self.parts, before, batch, plan=None)
        with clock.time("seal"):
            sealed = seal_step(self.parts.trainer, self.parts.keep_weights, before.chain, done)
        with clock.time("record"), self.metrics_file.open("a") as file:
            file.write(json.dumps({**done.metrics, "phase_seconds": clock.seconds}) + "\n")
        version = WeightVersion(
            lineage=0, step=done.step, digest=sealed.digest, object=sealed.stored.object
        )
        self.progress = replace(
            before, step=done.step, chain=sealed.chain, version=version, cursor=done.cursor
        )
        self.phases = clock.seconds
        self._bases = sealed.stored.bases
        self._unused.append(before.version.object)
        return done.metrics

    def tidy(self) -> None:
        """Delete weights that nobody needs any more, as a coordinator does beside a run's steps."""
        gone = [name for name in self._unused if name not in self._bases]
        for name in gone:
            self.store.delete(name)
        self._unused = [name for name in self._unused if name in self._bases]

    async def _batch(self, ordinals: range, rows: Any, clock: Clock) -> Batch:
        cursor = Cursor(
            next_ordinal=ordinals.stop, exhausted=is_exhausted(self.plan, ordinals.stop)
        )
        step = self.progress.step + 1
        if self.sampling is None:
            data = tuple(DataRow(ordinal=n, row=row) for n, row in zip(ordinals, rows, strict=True))
            ids = tuple((f"r/{n}",) for n in ordinals)
            return Batch(step=step, rows=data, ids=ids, cursor=cursor)
        tasks = [self._task(n, row) for n, row in zip(ordinals, rows, strict=True)]
        groups = await self.sampling.groups(tasks, self.progress.version, clock)
        names = tuple(tuple(f"{g.ordinal}/{t.sample}" for t in g.trajectories) for g in groups)
        return Batch(step=step, groups=groups, ids=names, cursor=cursor)

    def _task(self, ordinal: int, row: Mapping[str, Any]) -> Task:
        return Task(
            task_id=f"t/{ordinal}",
            kind="train",
            ordinal=ordinal,
            row=row,
            num_samples=self.plan.train.num_samples,
            attempt=1,
            epoch=1,
            lease_seconds=self.plan.lease_seconds,
            version=self.progress.version,
            sampling=self.plan.train.sampling,
        )

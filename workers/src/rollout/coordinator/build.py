"""From the one configuration file to a coordinator: the plan as numbers, its ledger, objects and rows.

Never loads a model, torch, or the author's code.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rollout.coordinator.batch_run import (
    build_batch_plan,
    build_batch_rows,
    no_summary,
)
from rollout.coordinator.context import Packer, ResultsWriter, RunContext, Summarise
from rollout.coordinator.dispatcher import Coordinator, open_coordinator
from rollout.coordinator.duties.batch_results import build_results_writer, require_free
from rollout.coordinator.evaluations import (
    build_evaluation_plan,
    build_suite_rows,
    plan_evaluations,
)
from rollout.coordinator.plan import (
    HeldOutPlan,
    LearnerPlan,
    LimitsPlan,
    NumericsPlan,
    RunPlan,
    SnapshotsPlan,
    StoragePlan,
    StragglerPlan,
    TaskRows,
    TrainPlan,
)
from rollout.coordinator.rows import DataRows, build_rows, train_of
from rollout.coordinator.rules.autoscaling import ActorBounds
from rollout.coordinator.rules.drift import DriftBounds
from rollout.coordinator.rules.retention import objects_in, objects_of
from rollout.coordinator.settings import ResolvedSettings, SettingsResolver, SteadyResolver
from rollout.data.cursor import total
from rollout.errors import RolloutError, SpecError
from rollout.evaluations.statistics import summarise
from rollout.events.build import open_event_trackers
from rollout.events.cloud_events import EventSource
from rollout.ledger.opening import open_ledger
from rollout.ledger.records import Limits as LedgerLimits
from rollout.ledger.records import RunIdentity
from rollout.models.experts.families import experts_of
from rollout.objects.opening import open_names, open_store
from rollout.objects.places import is_bucket
from rollout.plugins.author import code_folders
from rollout.seams import Tracker
from rollout.snapshots.guard import SnapshotGuard
from rollout.tracking.build import build_trackers
from rollout.types import SamplingParams
from rollout_api.checks.pods.cluster import find_local_trackers
from rollout_api.fields.live import LiveSettings, with_live
from rollout_api.v1alpha1.operations import Limits
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.train import Stragglers, Train
from rollout_api.worker import WorkerConfig


async def open_from_config(
    config: WorkerConfig, packer: Packer | None = None, pinned: frozenset[str] = frozenset()
) -> Coordinator:
    """The coordinator of one run; ``pinned`` as in ``RunContext``. Raises SpecError, DataError or LedgerError."""
    layout = config.layout
    opened_run = _OPENING[config.spec.chosen](config)
    ledger = await asyncio.to_thread(
        open_ledger,
        config.spec.storage,
        Path(layout.ledger_path),
        RunIdentity(
            uid=config.run.uid,
            name=config.run.name,
            spec_digest=config.spec_digest,
            identity_format=config.identity_format,
        ),
        LedgerLimits(failures_max=config.spec.limits.sample_attempts),
    )
    snapshots = Path(layout.run_dir) / "snapshots"
    snapshots.mkdir(parents=True, exist_ok=True)
    opened = await open_coordinator(
        opened_run.plan,
        ledger,
        open_store(config, "coordinator"),
        opened_run.rows,
        snapshots=snapshots,
        summarise=opened_run.summarise,
        resolver=opened_run.resolver,
    )
    opened.run.packer = packer
    opened.run.results = opened_run.results
    opened.run.pinned = pinned
    opened.run.guard = _guard(config, opened.run)
    if config.spec.infer is not None and opened.run.state.version is None:
        try:
            await asyncio.to_thread(require_free, config)
        except RolloutError:
            await opened.close()
            raise
    return opened


def _guard(config: WorkerConfig, run: RunContext) -> SnapshotGuard:
    """What keeps the objects of snapshots that are taken of this run."""
    guard, state = SnapshotGuard(run.store, open_names(config)), run.state
    guard.note(objects_in(state.versions.values()))
    guard.note(objects_of((*state.anchors, *state.dead_anchors)))
    return guard


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a coordinator is opened for, besides its ledger and its store."""

    plan: RunPlan
    rows: TaskRows
    summarise: Summarise
    resolver: SettingsResolver
    results: ResultsWriter | None = None


def _open_training(config: WorkerConfig) -> _Work:
    rows = build_rows(config)
    return _Work(
        plan=build_plan(config, rows),
        rows=rows,
        summarise=summarise,
        resolver=ConfigResolver(config=config, rows=rows),
    )


def _open_batch_run(config: WorkerConfig) -> _Work:
    rows = build_batch_rows(config)
    plan = build_batch_plan(config, rows)
    return _Work(
        plan=plan,
        rows=rows,
        summarise=no_summary,
        resolver=SteadyResolver(begun=plan),
        results=build_results_writer(config, rows),
    )


def _open_evaluation_run(config: WorkerConfig) -> _Work:
    rows = build_suite_rows(config)
    plan = build_evaluation_plan(config, rows)
    return _Work(
        plan=plan,
        rows=rows,
        summarise=summarise,
        resolver=SteadyResolver(begun=plan, open_trackers=partial(open_trackers, config)),
    )


_OPENING: dict[str, Callable[[WorkerConfig], _Work]] = {
    "train": _open_training,
    "infer": _open_batch_run,
    "evaluate": _open_evaluation_run,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResolver:
    """What live settings mean for the run of this configuration."""

    config: WorkerConfig
    rows: DataRows

    def plan(self, live: LiveSettings) -> ResolvedSettings:
        """The plan under these settings. Raises SpecError."""
        spec, deferred = with_live(self.config.spec, live)
        config = self.config.model_copy(update={"spec": spec})
        return ResolvedSettings(plan=build_plan(config, self.rows), deferred=deferred)

    def trackers(self, live: LiveSettings) -> Sequence[Tracker]:
        """The trackers that these settings name. Raises SpecError."""
        return open_trackers(self.config, live)


def open_trackers(config: WorkerConfig, live: LiveSettings) -> Sequence[Tracker]:
    """Open every tracker; in a pod none that is a file of its own choice. Raises SpecError."""
    wanted = config.spec.tracking if live.tracking is None else live.tracking
    if config.authentication is not None:
        for problem in find_local_trackers(wanted):
            raise SpecError(f"{problem.field}: {problem.message}; {problem.fix}")
    run_dir, run = Path(config.layout.run_dir), config.run
    trackers = build_trackers(
        wanted,
        run_dir,
        name=run.name,
        uid=run.uid,
        config=config.spec.model_dump(mode="json", exclude_none=True),
        folders=code_folders(config),
        attempt=config.attempt,
    )
    namespace = run.namespace if config.authentication is not None else ""
    source = EventSource(uid=run.uid, name=run.name, namespace=namespace)
    return (*trackers, *open_event_trackers(wanted, run_dir, source))


def build_plan(config: WorkerConfig, rows: DataRows) -> RunPlan:
    """The run as numbers."""
    spec, train = config.spec, train_of(config)
    return RunPlan(
        name=config.run.name,
        uid=config.run.uid,
        train=_train(config, train, rows),
        limits=_limits(spec.limits),
        numerics=NumericsPlan(
            exact=spec.numerics.mode == "Exact",
            grade=config.resolved.grade,
        ),
        snapshots=SnapshotsPlan(
            anchors_kept=spec.snapshots.keep_last,
            weights_place=_weights_place(config),
            anchor_every_steps=min(spec.snapshots.every_steps, spec.snapshots.max_replay_steps),
            replay_steps_max=spec.snapshots.max_replay_steps,
            saves_on_notice=spec.snapshots.on_preemption == "SnapshotIfTime",
        ),
        storage=StoragePlan(
            bodies_behind=spec.storage.bodies_behind if spec.storage else None,
        ),
        learner=LearnerPlan(nodes=spec.learner.nodes),
        actors=_actor_bounds(spec),
        evaluations=plan_evaluations(config, _sampling(config, train), rows.suites),
        lease_seconds=config.lease_seconds,
        heartbeat_seconds=config.heartbeat_seconds,
        attempt=config.attempt,
        generation=config.generation,
    )


def _weights_place(config: WorkerConfig) -> str:
    """Servers read a bucket and no volume, and take neither adapters nor reward models as a run saves them."""
    spec, place = config.spec, config.layout.objects_uri or ""
    whole = spec.model.lora is None and not spec.trains_scorer
    return place if whole and is_bucket(place) else ""


def _train(config: WorkerConfig, train: Train, rows: DataRows) -> TrainPlan:
    algorithm, dynamic = train.algorithm, train.dynamic_sampling
    offline = not algorithm.is_online
    return TrainPlan(
        tasks_per_step=algorithm.items_per_step,
        num_samples=algorithm.num_samples,
        sampling=_sampling(config, train),
        offline=offline,
        staleness_max=0 if offline else train.max_staleness,
        steps_max=train.max_steps,
        num_tasks=total(rows.order),
        short_tail=train.data is not None and train.data.tail_batch == "Short",
        waves_max=None if dynamic is None or offline else dynamic.generation_waves_max,
        samples_min=algorithm.traits.samples_min(algorithm.value),
        pools_rewards=algorithm.traits.pools_rewards(algorithm.value),
        learns_from_reward="teacher" not in algorithm.traits.models,
        extra_groups=extra_groups(config.spec),
        stragglers=straggler_plan(config.spec),
        held_out=_held_out(train, rows),
        branches=algorithm.traits.branches,
        experts=None if offline else experts_of(config.resolved),
    )


def _limits(limits: Limits) -> LimitsPlan:
    return LimitsPlan(
        attempts_max=limits.sample_attempts,
        sample_wait_seconds=float(limits.sample_seconds),
        full_seconds=float(limits.no_progress_seconds),
        drift=_bounds(limits.mismatch_kl_warn, limits.mismatch_kl_stop),
        retokenised=_bounds(limits.retokenised_warn, limits.retokenised_stop),
        reward_divergence_stops=limits.reward_divergence == "StopRun",
    )


def _bounds(warn: float, stop: float | None) -> DriftBounds:
    return DriftBounds(warn=float(warn), stop=None if stop is None else float(stop))


def _actor_bounds(spec: RolloutRunSpec) -> ActorBounds | None:
    scale = spec.actors.autoscale
    if scale is None or not spec.needs_actors:
        return None
    return ActorBounds(low=scale.min, high=scale.max, start=spec.actors.replicas)


def extra_groups(spec: RolloutRunSpec) -> int:
    """Groups that a step asks for and does not take."""
    train = spec.train
    if train is None or train.stragglers is None or not train.algorithm.is_online:
        return 0
    share = float(train.stragglers.over_provision)
    return math.ceil(share * train.algorithm.items_per_step)


def straggler_plan(spec: RolloutRunSpec) -> StragglerPlan | None:
    """How slow groups are moved; None in Exact, and where nothing is sampled."""
    train = spec.train
    if spec.numerics.mode == "Exact" or train is None or not train.algorithm.is_online:
        return None
    wanted = train.stragglers or Stragglers()
    return StragglerPlan(
        steal_margin_seconds=wanted.steal_margin_seconds,
        deadline_factor=float(wanted.deadline_factor),
    )


def _held_out(train: Train, rows: DataRows) -> HeldOutPlan | None:
    if train.held_out is None or rows.held_out is None:
        return None
    return HeldOutPlan(num_rows=len(rows.held_out), every_steps=train.held_out.every_steps)


def _sampling(config: WorkerConfig, train: Train) -> SamplingParams:
    sampling = train.sampling
    return SamplingParams(
        max_new_tokens=sampling.new_tokens_max,
        temperature=sampling.temperature,
        min_new_tokens=sampling.min_new_tokens,
        stop_token_ids=sampling.end_token_ids(config.resolved.stop_token_ids),
        stop=sampling.stop,
        include_stop=sampling.include_stop_text,
    )

"""What is measured, as a coordinator sees it: the evaluations of a run that trains, and a run that does nothing else.

A run that only evaluates has no steps: each of its evaluations is measured once, on version 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollout.coordinator.batch_run import row_actors
from rollout.coordinator.plan import (
    EvaluationPlan,
    Gate,
    LimitsPlan,
    NumericsPlan,
    RunPlan,
    TrainPlan,
)
from rollout.coordinator.rows import open_suites, require_planned_suites
from rollout.errors import DataError
from rollout.evaluations.build import build_suite
from rollout.evaluations.suites import Suite, SuiteSampling
from rollout.plugins.author import code_folders
from rollout.seams import DataSource
from rollout.types import Row, SamplingParams
from rollout_api.v1alpha1.evaluation import Evaluation
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.worker import WorkerConfig

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRows:
    """Rows of evaluations by name and split; there are no others."""

    suites: Mapping[Key, DataSource]

    def train(self, ordinals: Sequence[int]) -> Sequence[Row]:
        """Nothing is trained on. Raises DataError."""
        raise DataError(f"this run only evaluates: {len(ordinals)} training rows were asked for")

    def evaluation(self, name: str, split: str, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these places of a suite. Raises DataError."""
        if (name, split) not in self.suites:
            raise DataError(
                f"evaluation {name} ({split}) is in the ledger, but not in the manifest"
            )
        return self.suites[name, split].rows(positions)


def build_suite_rows(config: WorkerConfig) -> SuiteRows:
    """Open every suite of a run that only evaluates. Raises SpecError or DataError."""
    suites = open_suites(config)
    require_planned_suites(config, suites)
    return SuiteRows(suites=suites)


def build_evaluation_plan(config: WorkerConfig, rows: SuiteRows) -> RunPlan:
    """The run as numbers."""
    limits = config.spec.limits
    sampling = SamplingParams(
        max_new_tokens=Sampling().new_tokens_max,
        temperature=1.0,
        stop_token_ids=config.resolved.stop_token_ids,
    )
    return RunPlan(
        name=config.run.name,
        uid=config.run.uid,
        trains=False,
        train=TrainPlan(
            tasks_per_step=1, num_samples=1, sampling=sampling, offline=True, steps_max=0
        ),
        limits=LimitsPlan(
            attempts_max=limits.sample_attempts,
            full_seconds=float(limits.no_progress_seconds),
        ),
        numerics=NumericsPlan(
            exact=config.spec.numerics.mode == "Exact", grade=config.resolved.grade
        ),
        actors=row_actors(config),
        evaluations=tuple(
            replace(plan, at_start=True, at_end=False)
            for plan in plan_evaluations(config, sampling, rows.suites)
        ),
        lease_seconds=config.lease_seconds,
        heartbeat_seconds=config.heartbeat_seconds,
        attempt=config.attempt,
        generation=config.generation,
    )


def plan_evaluations(
    config: WorkerConfig, sampling: SamplingParams, suites: Mapping[Key, DataSource]
) -> tuple[EvaluationPlan, ...]:
    """The evaluations of a run in their order; ``sampling`` says what they and their suites leave open."""
    spec = config.spec
    models = {role: Path(path) for role, path in config.resolved.models.items()}
    built = [
        build_suite(
            item,
            index,
            train=spec.train,
            seed=spec.seed,
            folders=code_folders(config),
            models=models,
        )
        for index, item in enumerate(spec.evaluations)
    ]
    return tuple(
        _evaluation(item, suite, sampling, len(suites[suite.name, suite.split]))
        for item, suite in zip(spec.evaluations, built, strict=True)
    )


def _evaluation(
    item: Evaluation, suite: Suite, base: SamplingParams, num_prompts: int
) -> EvaluationPlan:
    return EvaluationPlan(
        name=suite.name,
        split="selection" if suite.split == "selection" else "report",
        num_prompts=num_prompts,
        samples_per_prompt=item.samples_per_prompt,
        sampling=_sampling(item, suite.sampling, base),
        metrics=tuple(suite.metrics),
        at_start=item.at_start,
        every_steps=item.every_steps,
        at_end=item.at_end,
        selects=item.selects,
        metric=item.gate.metric if item.gate is not None else "accuracy",
        gate=None
        if item.gate is None
        else Gate(
            metric=item.gate.metric,
            lower_bound=item.gate.lower_bound,
            fails=item.gate.action == "StopRun",
        ),
    )


def _sampling(item: Evaluation, suite: SuiteSampling, base: SamplingParams) -> SamplingParams:
    """The manifest's word first, then the suite's, then training's."""
    return SamplingParams(
        max_new_tokens=item.max_new_tokens or suite.max_new_tokens or base.max_new_tokens,
        temperature=item.temperature,
        stop_token_ids=base.stop_token_ids,
        stop=suite.stop or base.stop,
        include_stop=base.include_stop and not suite.stop,
    )

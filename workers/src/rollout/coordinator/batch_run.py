"""An inference run as a coordinator sees it: no steps, and every row a task of version 0.

The rows are admitted, leased and committed as those of an evaluation that is measured at the start and that
nothing is scored in: a row counts once, whatever dies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollout.coordinator.plan import (
    EvaluationPlan,
    InferPlan,
    LimitsPlan,
    NumericsPlan,
    RunPlan,
    TrainPlan,
)
from rollout.coordinator.rules.autoscaling import ActorBounds
from rollout.data.batch import TOO_LONG, BatchSource, RefusedRow, open_batch
from rollout.engines.sizes import tasks_at_once
from rollout.errors import DataError, DataNotFound, SpecError
from rollout.types import Row, SamplingParams
from rollout_api.v1alpha1.inference.infer import Infer
from rollout_api.worker import WorkerConfig

BATCH = ("infer", "report")
"""Name and split under which the rows of an inference run stand in the ledger."""
RESULTS_FOLDER = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRows:
    """Rows that are asked, by their place in the order in which they are handed out; others are in ``refused``."""

    source: BatchSource
    asked: Sequence[int]
    """Positions in ``source`` of the rows that are asked: that of place ``i`` is ``asked[i]``."""
    refused: Sequence[RefusedRow]

    def train(self, ordinals: Sequence[int]) -> Sequence[Row]:
        """Nothing is trained on. Raises DataError."""
        raise DataError(f"an inference run has no training rows, {len(ordinals)} were asked for")

    def evaluation(self, name: str, split: str, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these places of ``asked``. Raises DataError."""
        if (name, split) != BATCH:
            raise DataError(f"evaluation {name} ({split}) is in the ledger of an inference run")
        return self.source.rows([self.asked[position] for position in positions])

    def in_file_order(self) -> Sequence[int]:
        """All places, in the order of the data."""
        return sorted(range(len(self.asked)), key=self.asked.__getitem__)


def infer_of(config: WorkerConfig) -> Infer:
    """The inference of a run. Raises SpecError where there is none."""
    if config.spec.infer is None:
        raise SpecError("spec.infer: this coordinator runs inference, and the run has none")
    return config.spec.infer


def build_batch_rows(config: WorkerConfig) -> BatchRows:
    """Open the data, without what was found too long. Raises DataError."""
    source = open_batch(infer_of(config))
    planned = config.resolved.data_digests.get("infer")
    if planned is not None and planned != source.digest:
        raise DataNotFound(
            f"infer.data is {source.digest}, the run was planned for {planned}: the data changed;"
            " put it back, or plan a new run"
        )
    left_out = frozenset(config.resolved.left_out)
    refused = [*source.refused, *(_too_long(source, position) for position in left_out)]
    return BatchRows(
        source=source,
        asked=[position for position in source.order() if position not in left_out],
        refused=sorted(refused, key=lambda one: one.number),
    )


def _too_long(source: BatchSource, position: int) -> RefusedRow:
    return RefusedRow(
        number=source.numbers[position],
        where=source.where(position),
        code=TOO_LONG,
        message="the chat template or the tokenizer refuses the prompt, or it has no tokens, or it and the"
        " new tokens do not fit the model's context",
        custom_id=source.rows([position])[0].get("custom_id"),
    )


def build_batch_plan(config: WorkerConfig, rows: BatchRows) -> RunPlan:
    """The run as numbers."""
    spec, infer = config.spec, infer_of(config)
    sampling = _sampling(config, infer)
    return RunPlan(
        name=config.run.name,
        uid=config.run.uid,
        trains=False,
        train=TrainPlan(
            tasks_per_step=1, num_samples=1, sampling=sampling, offline=True, steps_max=0
        ),
        infer=InferPlan(
            num_rows=rows.source.num_rows,
            num_refused=len(rows.refused),
            failed_ratio_max=infer.max_failed_ratio,
        ),
        limits=LimitsPlan(
            attempts_max=spec.limits.sample_attempts,
            full_seconds=float(spec.limits.no_progress_seconds),
        ),
        numerics=NumericsPlan(
            exact=spec.numerics.mode == "Exact",
            grade=config.resolved.grade,
        ),
        actors=row_actors(config),
        evaluations=(
            EvaluationPlan(
                name=BATCH[0],
                split="report",
                num_prompts=len(rows.asked),
                samples_per_prompt=infer.samples_per_prompt,
                sampling=sampling,
                at_start=True,
                at_end=False,
            ),
        ),
        lease_seconds=config.lease_seconds,
        heartbeat_seconds=config.heartbeat_seconds,
        attempt=config.attempt,
        generation=config.generation,
    )


def row_actors(config: WorkerConfig) -> ActorBounds | None:
    """Bounds of the actors of a run without a learner, where their number follows the rows that are left."""
    actors = config.spec.actors
    if actors.autoscale is None:
        return None
    return ActorBounds(
        low=actors.autoscale.min,
        high=actors.autoscale.max,
        start=actors.replicas,
        tasks_each=tasks_at_once(config),
    )


def _sampling(config: WorkerConfig, infer: Infer) -> SamplingParams:
    asked = infer.sampling
    return SamplingParams(
        max_new_tokens=asked.new_tokens_max,
        temperature=asked.temperature,
        min_new_tokens=asked.min_new_tokens,
        stop_token_ids=asked.end_token_ids(config.resolved.stop_token_ids),
        stop=asked.stop,
        include_stop=asked.include_stop_text,
    )


def results_folder(config: WorkerConfig) -> Path:
    """Where the files of results are written: the place itself, or where they wait for the way to a bucket."""
    output = infer_of(config).output
    if output is None or results_bucket(config) is not None:
        return Path(config.layout.run_dir) / RESULTS_FOLDER
    return Path(output.uri.removeprefix("file://"))


def results_bucket(config: WorkerConfig) -> str | None:
    """The place in a bucket where results appear: the one that is named, or in a cluster the run's own."""
    output, storage = infer_of(config).output, config.spec.storage
    if output is not None:
        return output.uri if is_bucket_place(output.uri) else None
    if config.authentication is None or storage is None or storage.uri is None:
        return None
    return f"{storage.uri.rstrip('/')}/{config.run.uid}/{RESULTS_FOLDER}"


def is_bucket_place(uri: str) -> bool:
    """Whether a place is no folder of this machine."""
    return urlsplit(uri).scheme not in ("", "file")


def no_summary(rewards: Sequence[Sequence[float]]) -> Mapping[str, Any]:
    """Nothing is scored."""
    return {"num_samples": sum(len(one) for one in rewards)}

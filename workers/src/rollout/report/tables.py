"""The tables that a run can be exported as: their columns with types, and their rows, batch by batch.

Rows come straight from the ledger, a step at a time, so that memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollout.debug.recording import open_recording
from rollout.ledger.sql.reader import Reader
from rollout.ledger.views import SampleView, StepView
from rollout.report.gather import (
    describe_branches,
    evaluation_rows,
    is_offline,
    plugin_columns,
    token_columns,
)
from rollout.report.rows import SHOWN, data_rows
from rollout.tracking.last_step import flat_numbers

if TYPE_CHECKING:
    import pyarrow as pa

What = Literal["samples", "answers", "metrics", "evaluations"]
Row = dict[str, Any]
STEPS_AT_ONCE = 256
STEP_FIELDS = ("step", "lineage", "num_consumed", "chain", "committed_at")


class Table:
    """One table: ``schema`` and ``batches`` of rows in order. Open the ledger it reads for as long."""

    def __init__(self, schema: pa.Schema, batches: Iterator[Sequence[Row]]) -> None:
        self.schema = schema
        self.batches = batches


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A run as it stands: of a live one, what is committed after ``last_step`` is not looked at."""

    ledger: Reader
    name: str
    last_step: int

    def pages(self) -> Iterator[Sequence[StepView]]:
        """The steps, some at a time."""
        page = self.ledger.steps(limit=STEPS_AT_ONCE)
        while page:
            yield [view for view in page if view.step <= self.last_step]
            page = self.ledger.steps(after=page[-1].step, limit=STEPS_AT_ONCE)

    def steps(self) -> Iterator[StepView]:
        """The steps, one by one."""
        for page in self.pages():
            yield from page


def open_table(run_dir: Path, ledger: Reader, what: What) -> Table:
    """A table of a run. Raises SpecError, LedgerError or DataError, also while it is read."""
    run = ledger.run()
    source = TableSource(ledger=ledger, name=run.identity.name, last_step=run.step)
    if what == "metrics":
        return _metrics(source)
    if what == "evaluations":
        return Table(build_schema(EVALUATION_COLUMNS), _evaluations(source))
    if what == "answers":
        columns = {**ANSWER_COLUMNS, **_sample_columns(_rewards(source))}
        return Table(build_schema(columns), _answers(source))
    if is_offline(run_dir):
        return Table(build_schema(DATA_COLUMNS), _data(run_dir, source))
    columns = {**CONSUMED_COLUMNS, **_sample_columns(_rewards(source))}
    return Table(build_schema(columns), _samples(source))


RUN_COLUMNS = {"run": "string"}
STEP_COLUMNS = {**RUN_COLUMNS, "step": "int64", "lineage": "int64"}
CONSUMED_COLUMNS = {**STEP_COLUMNS, "place": "int32"}
DATA_COLUMNS = {
    **CONSUMED_COLUMNS,
    "task": "string",
    "ordinal": "int64",
    **dict.fromkeys(SHOWN, "string"),
    "label": "bool",
    "margin": "double",
    "row": "string",
}
ANSWER_COLUMNS = {**RUN_COLUMNS, "evaluation": "string", "split": "string", "step": "int64"}
EVALUATION_COLUMNS = {
    **RUN_COLUMNS,
    "name": "string",
    "split": "string",
    "step": "int64",
    "metric": "string",
    **dict.fromkeys(("value", "low", "high"), "double"),
    "num_prompts": "int64",
    **dict.fromkeys(("scheduled_at", "finished_at"), "double"),
}


def _sample_columns(sources: Sequence[str]) -> dict[str, str]:
    return {
        "task": "string",
        "sample": "int32",
        "id": "string",
        "ordinal": "int64",
        "prompt": "string",
        "completion": "string",
        "answer": "string",
        "reward": "double",
        **{f"reward/{source}": "double" for source in sources},
        "ending": "string",
        "num_tokens": "int32",
        "prompt_ids": "list<int32>",
        "token_ids": "list<int32>",
        "actor_logprobs": "list<double>",
        "loss_mask": "list<int8>",
        "spans": "list<span>",
        "branches": "list<row>",
    }


def build_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Columns by name, each with the name of its type."""
    import pyarrow as pa

    span = pa.struct([(name, pa.int64()) for name in ("start", "end", "lineage", "step")])
    row = pa.struct(
        [
            ("prompt_ids", pa.list_(pa.int32())),
            ("token_ids", pa.list_(pa.int32())),
            ("actor_logprobs", pa.list_(pa.float64())),
            ("loss_mask", pa.list_(pa.int8())),
            ("spans", pa.list_(span)),
        ]
    )
    types = {
        "string": pa.string(),
        "bool": pa.bool_(),
        "double": pa.float64(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "list<int8>": pa.list_(pa.int8()),
        "list<int32>": pa.list_(pa.int32()),
        "list<double>": pa.list_(pa.float64()),
        "list<span>": pa.list_(span),
        "list<row>": pa.list_(row),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _rewards(source: TableSource) -> list[str]:
    """The names of rewards: those of the steps and of each evaluation's first answer."""
    found: dict[str, None] = {}
    for step in source.steps():
        found.update(dict.fromkeys(step.metrics.get("reward_by_source") or {}))
    for view in source.ledger.evaluations():
        for answer in source.ledger.evaluation_samples(view.name, view.split, view.step, limit=1):
            found.update(dict.fromkeys(answer.trajectory.rewards if answer.trajectory else ()))
    return sorted(found)


def _samples(source: TableSource) -> Iterator[list[Row]]:
    for step in source.steps():
        found = source.ledger.samples(step.step)
        yield [{**_at(source, step), "place": one.place, **export_sample(one)} for one in found]


def _at(source: TableSource, step: StepView) -> Row:
    return {"run": source.name, "step": step.step, "lineage": step.lineage}


def _answers(source: TableSource) -> Iterator[list[Row]]:
    for view in source.ledger.evaluations():
        at = {
            "run": source.name,
            "evaluation": view.name,
            "split": view.split,
            "step": view.step,
        }
        found = source.ledger.evaluation_samples(view.name, view.split, view.step)
        yield [{**at, **export_sample(one)} for one in found]


def _data(run_dir: Path, source: TableSource) -> Iterator[list[Row]]:
    with open_recording(run_dir) as recording:
        for step in source.steps():
            rows = data_rows(recording, step.step)
            yield [{**_at(source, step), **row} for row in rows]


def export_sample(view: SampleView) -> Row:
    """A trajectory with all that its name is made of; None for what is no longer kept of it."""
    kept = {
        "task": view.task_id,
        "sample": view.sample,
        "id": view.trajectory_id,
        "reward": view.reward,
        "ending": view.ending,
        "num_tokens": view.num_tokens,
    }
    own = view.trajectory
    if own is None:
        return kept
    return {
        **kept,
        "ordinal": own.ordinal,
        "prompt": own.prompt_text,
        "completion": own.text,
        "answer": own.answer,
        **{f"reward/{name}": value for name, value in own.rewards.items()},
        **plugin_columns(own),
        **token_columns(own),
        "branches": describe_branches(own),
    }


def _metrics(source: TableSource) -> Table:
    names = sorted({name for step in source.steps() for name in _numbers(step)})
    columns = {
        **STEP_COLUMNS,
        "num_consumed": "int64",
        "chain": "string",
        "committed_at": "double",
        **dict.fromkeys(names, "double"),
    }
    return Table(build_schema(columns), _metric_rows(source))


def _metric_rows(source: TableSource) -> Iterator[list[Row]]:
    for page in source.pages():
        yield [
            {
                "run": source.name,
                **_numbers(view),
                **{name: getattr(view, name) for name in STEP_FIELDS},
            }
            for view in page
        ]


def _numbers(view: StepView) -> dict[str, float]:
    """The numbers of a step by name, nested ones as ``outer/inner``; what is not finite is left out."""
    found = flat_numbers({**view.metrics, "phase_seconds": view.phase_seconds})
    return {name: value for name, value in found.items() if name not in STEP_FIELDS}


def _evaluations(source: TableSource) -> Iterator[list[Row]]:
    for view in source.ledger.evaluations():
        times = {"scheduled_at": view.scheduled_at, "finished_at": view.finished_at}
        yield [{"run": source.name, **row, **times} for row in evaluation_rows(view)]

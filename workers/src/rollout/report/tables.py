"""The tables that a run can be exported as: their columns with types, and their rows, batch by batch.

Rows come straight from the ledger, a step at a time, so that memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollout.debug.recording import open_recording
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.ledger.views import SampleView, StepView
from rollout.report.gather import evaluation_rows
from rollout.report.rows import SHOWN, data_rows, is_offline
from rollout.tracking.last_step import flat_numbers

if TYPE_CHECKING:
    import pyarrow as pa

What = Literal["samples", "answers", "metrics", "evaluations"]
Row = dict[str, Any]
STEPS_AT_ONCE = 256
PROMPTS_AT_ONCE = 256
STEP_FIELDS = ("step", "lineage", "num_consumed", "chain", "committed_at")


class Table:
    """One table: ``schema`` and ``batches`` of rows in order. Open the ledger it reads for as long."""

    def __init__(self, schema: pa.Schema, batches: Iterator[Sequence[Row]]) -> None:
        self.schema = schema
        self.batches = batches


def open_table(run_dir: Path, ledger: LedgerReader, what: What) -> Table:
    """A table of a run. Raises SpecError, LedgerError or DataError, also while it is read."""
    run = {"run": ledger.run().identity.name}
    if what == "metrics":
        return _metrics(ledger, run)
    if what == "evaluations":
        return Table(_schema(EVALUATION_COLUMNS), _evaluations(ledger, run))
    if what == "answers":
        columns = {**ANSWER_COLUMNS, **_sample_columns(_sources(ledger))}
        return Table(_schema(columns), _answers(ledger, run))
    if is_offline(run_dir):
        return Table(_schema(DATA_COLUMNS), _data(run_dir, run))
    columns = {**CONSUMED_COLUMNS, **_sample_columns(_sources(ledger))}
    return Table(_schema(columns), _samples(ledger, run))


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
    }


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    span = pa.struct([(name, pa.int64()) for name in ("start", "end", "lineage", "step")])
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
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _pages(ledger: LedgerReader) -> Iterator[tuple[StepView, ...]]:
    page = ledger.steps(limit=STEPS_AT_ONCE)
    while page:
        yield page
        page = ledger.steps(after=page[-1].step, limit=STEPS_AT_ONCE)


def _sources(ledger: LedgerReader) -> list[str]:
    """The reward sources of a run: those of its steps and of its evaluations' first answers."""
    found: dict[str, None] = {}
    for page in _pages(ledger):
        for view in page:
            found.update(dict.fromkeys(view.metrics.get("reward_by_source") or {}))
    for view in ledger.evaluations():
        for answer in ledger.evaluation_samples(view.name, view.split, view.step, limit=1):
            found.update(dict.fromkeys(answer.trajectory.rewards))
    return sorted(found)


def _samples(ledger: LedgerReader, run: Mapping[str, str]) -> Iterator[list[Row]]:
    for page in _pages(ledger):
        for step in page:
            at = {**run, "step": step.step, "lineage": step.lineage}
            yield [
                {**at, "place": view.place, **export_sample(view)}
                for view in ledger.samples(step.step)
            ]


def _answers(ledger: LedgerReader, run: Mapping[str, str]) -> Iterator[list[Row]]:
    for view in ledger.evaluations():
        at = {**run, "evaluation": view.name, "split": view.split, "step": view.step}
        found = ledger.evaluation_samples(view.name, view.split, view.step)
        for start in range(0, len(found), PROMPTS_AT_ONCE):
            yield [{**at, **export_sample(one)} for one in found[start : start + PROMPTS_AT_ONCE]]


def _data(run_dir: Path, run: Mapping[str, str]) -> Iterator[list[Row]]:
    with open_recording(run_dir) as recording:
        for page in _pages(recording.ledger):
            for step in page:
                at = {**run, "step": step.step, "lineage": step.lineage}
                yield [{**at, **row} for row in data_rows(recording, step.step)]


def export_sample(view: SampleView) -> Row:
    """A trajectory with all that its name is made of."""
    own = view.trajectory
    return {
        "task": view.task_id,
        "sample": own.sample,
        "id": view.trajectory_id,
        "ordinal": own.ordinal,
        "prompt": own.prompt_text,
        "completion": own.text,
        "answer": own.answer,
        "reward": own.reward,
        **{f"reward/{name}": value for name, value in own.rewards.items()},
        "ending": own.ending,
        "num_tokens": len(own.token_ids),
        "prompt_ids": list(own.prompt_ids),
        "token_ids": list(own.token_ids),
        "actor_logprobs": list(own.actor_logprobs),
        "loss_mask": list(own.loss_mask),
        "spans": [
            {"start": one.start, "end": one.end, "lineage": one.lineage, "step": one.step}
            for one in own.spans
        ],
    }


def _metrics(ledger: LedgerReader, run: Mapping[str, str]) -> Table:
    names: dict[str, None] = {}
    for page in _pages(ledger):
        for view in page:
            names.update(dict.fromkeys(_numbers(view)))
    columns = {
        **STEP_COLUMNS,
        "num_consumed": "int64",
        "chain": "string",
        "committed_at": "double",
        **dict.fromkeys(sorted(names), "double"),
    }
    return Table(_schema(columns), _metric_rows(ledger, run))


def _metric_rows(ledger: LedgerReader, run: Mapping[str, str]) -> Iterator[list[Row]]:
    for page in _pages(ledger):
        yield [
            {**run, **_numbers(view), **{name: getattr(view, name) for name in STEP_FIELDS}}
            for view in page
        ]


def _numbers(view: StepView) -> dict[str, float]:
    """The numbers of a step by name, nested ones as ``outer/inner``; what is not finite is left out."""
    found = flat_numbers({**view.metrics, "phase_seconds": view.phase_seconds})
    return {name: value for name, value in found.items() if name not in STEP_FIELDS}


def _evaluations(ledger: LedgerReader, run: Mapping[str, str]) -> Iterator[list[Row]]:
    for view in ledger.evaluations():
        times = {"scheduled_at": view.scheduled_at, "finished_at": view.finished_at}
        yield [{**run, **row, **times} for row in evaluation_rows(view)]

"""The tables that a model of a training service can be exported as: what was sampled from it, and its steps.

Rows come straight from the book, call by call, so that memory does not grow with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.report.export import Format, write_table
from rollout.report.tables import Row, Table, What, build_schema
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.samples import Decode, sample_rows
from rollout.service.reading.steps import TakenStep, read_steps
from rollout.service.reading.words import plain_fields

SAMPLE_COLUMNS = {
    **dict.fromkeys(("run", "id", "sampler", "weights", "path"), "string"),
    **dict.fromkeys(("step", "call"), "int64"),
    "sample": "int32",
    **dict.fromkeys(("prompt", "completion", "ending"), "string"),
    "num_tokens": "int32",
    **dict.fromkeys(("prompt_ids", "token_ids"), "list<int32>"),
    "actor_logprobs": "list<double>",
    "seed": "int64",
    "settings": "string",
    "answered_at": "double",
}
STEP_COLUMNS = {
    "run": "string",
    **dict.fromkeys(("step", "call"), "int64"),
    "losses": "string",
    "loss": "double",
    **dict.fromkeys(("num_calls", "num_sequences", "num_tokens"), "int64"),
    "chain": "string",
    "committed_at": "double",
}


def export_model(
    opened: OpenedModel, folder: Path, what: Sequence[What], form: Format, decode: Decode | None
) -> dict[What, tuple[Path, int]]:
    """Write one file a table, as ``export_run`` does. Raises SpecError for a table that no service has, LedgerError, StoreError."""
    tables = {one: _open(opened, one, decode) for one in what}
    written: dict[What, tuple[Path, int]] = {}
    for one, table in tables.items():
        path = folder / f"{one}.{form}"
        written[one] = (path, write_table(table, path, form, _provenance(opened, one)))
    return written


def _open(opened: OpenedModel, what: What, decode: Decode | None) -> Table:
    if what == "samples":
        return Table(build_schema(SAMPLE_COLUMNS), _samples(opened, decode))
    if what == "metrics":
        return _metrics(opened)
    raise SpecError(
        f"--what {what}: a training service has none, they are its client's; export samples or metrics"
    )


def _provenance(opened: OpenedModel, what: What) -> dict[str, str]:
    model = opened.model
    return {"table": what, "run": model.id, "base": model.base, "base_digest": model.base_digest}


def _samples(opened: OpenedModel, decode: Decode | None) -> Iterator[list[Row]]:
    for page in sample_rows(opened.book, opened.model, decode):
        yield [
            {
                **row,
                "run": opened.model.id,
                "settings": json.dumps(row["settings"]),
            }
            for row in page
        ]


def _metrics(opened: OpenedModel) -> Table:
    names: dict[str, None] = {}
    for step in read_steps(opened.book, opened.model.id):
        names.update(dict.fromkeys(_numbers(step)))
    numbers = dict.fromkeys(sorted(set(names) - STEP_COLUMNS.keys()), "double")
    rows = ([_step_row(opened, step)] for step in read_steps(opened.book, opened.model.id))
    return Table(build_schema({**STEP_COLUMNS, **numbers}), rows)


def _step_row(opened: OpenedModel, step: TakenStep) -> dict[str, Any]:
    return {
        **_numbers(step),
        "run": opened.model.id,
        "step": step.step,
        "call": step.seq,
        "losses": ", ".join(step.losses),
        "loss": step.loss,
        "num_calls": step.num_calls,
        "num_sequences": step.num_sequences,
        "num_tokens": step.num_tokens,
        "chain": step.chain,
        "committed_at": step.answered_at,
    }


def _numbers(step: TakenStep) -> dict[str, float]:
    """What the step was asked with and what it measured, by name."""
    asked = plain_fields(step.asked).items()
    return {**{name: one for name, one in asked if isinstance(one, float | int)}, **step.metrics}

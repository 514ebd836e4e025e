"""What is in the files of an inference run: a row's line in either of them, or its record in a Parquet file. Pure but for the file.

Nothing in it is of this moment or of this machine: the same rows are the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Literal, Protocol

from blake3 import blake3

from rollout.coordinator.duties.pooled_results import (
    pooled_answer,
    pooled_body,
    pooled_fields,
    pooled_usage,
)
from rollout.data.batch import RefusedRow
from rollout.data.rows.requests import goes_on
from rollout.ledger.views import SampleView
from rollout.types import Row, Trajectory

Form = Literal["Jsonl", "Parquet"]
NAMES: Mapping[Form, str] = {"Jsonl": "results.jsonl", "Parquet": "results.parquet"}
GROUP_ROWS = 1024
"""Rows of a row group: what a writer has in memory."""


class ResultFile(Protocol):
    """A file that is written row by row, and closed."""

    def write(self, row: Row, number: int, samples: Sequence[SampleView]) -> None:
        """One answered row."""
        ...

    def close(self) -> None:
        """Write what is held back; the file itself is the caller's."""
        ...


def open_results(
    form: Form, file: BinaryIO, *, logprobs: bool, task: str = "Generate"
) -> ResultFile:
    """The writer of a form, of a run with this task."""
    if form == "Parquet":
        return _ParquetRows(file, logprobs=logprobs, task=task)
    return _Lines(file, logprobs=logprobs)


class _Lines:
    def __init__(self, file: BinaryIO, *, logprobs: bool) -> None:
        self._file, self._logprobs = file, logprobs

    def write(self, row: Row, number: int, samples: Sequence[SampleView]) -> None:
        self._file.write(encode_line(write_result(row, number, samples, logprobs=self._logprobs)))

    def close(self) -> None:
        """Nothing is held back."""


class _ParquetRows:
    """A fixed schema, zstd, a row group every GROUP_ROWS rows."""

    def __init__(self, file: BinaryIO, *, logprobs: bool, task: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = _schema(task, logprobs=logprobs)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._table = pa.Table
        self._held: list[dict[str, Any]] = []
        self._logprobs = logprobs

    def write(self, row: Row, number: int, samples: Sequence[SampleView]) -> None:
        self._held.append(write_record(row, number, samples, logprobs=self._logprobs))
        if len(self._held) == GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        if self._held:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(self._table.from_pylist(self._held, schema=self._schema))
        self._held.clear()


def _schema(task: str, *, logprobs: bool) -> Any:
    import pyarrow as pa

    asked = [("row", pa.int64()), ("custom_id", pa.string()), ("input", pa.string())]
    if task != "Generate":
        return pa.schema([*asked, *pooled_fields(task)])
    tokens = [("token_ids", pa.list_(pa.int32())), ("token_logprobs", pa.list_(pa.float64()))]
    completion = [
        ("text", pa.string()),
        ("finish_reason", pa.string()),
        *(tokens if logprobs else ()),
    ]
    return pa.schema(
        [
            *asked,
            ("completions", pa.list_(pa.struct(completion))),
            ("prompt_tokens", pa.int64()),
            ("completion_tokens", pa.int64()),
        ]
    )


def encode_line(document: Mapping[str, Any]) -> bytes:
    """A line of JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write_record(
    row: Row, number: int, samples: Sequence[SampleView], *, logprobs: bool
) -> dict[str, Any]:
    """A row of the Parquet file; ``input`` is the line as JSON."""
    made = [_kept(one) for one in samples]
    asked = {
        "row": number,
        "custom_id": row.get("custom_id"),
        "input": encode_line(row["record"]).decode().rstrip("\n"),
    }
    if "pooled" in row:
        tokens = pooled_usage(made[0])["prompt_tokens"]
        return {**asked, **pooled_answer(row, made[0]), "prompt_tokens": tokens}
    usage = _usage(made)
    return {
        **asked,
        "completions": [_completion(one, logprobs=logprobs) for one in made],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }


def write_error(row: RefusedRow) -> dict[str, Any]:
    """A line of the error file: OpenAI's for a row with a ``custom_id``, and where it lies in any case."""
    error = {"code": row.code, "message": row.message}
    if row.custom_id is None:
        return {"row": row.number, "where": row.where, "error": error}
    return {
        "id": _request_id(row.custom_id),
        "custom_id": row.custom_id,
        "response": None,
        "error": error,
        "where": row.where,
    }


def write_result(
    row: Row, number: int, samples: Sequence[SampleView], *, logprobs: bool
) -> dict[str, Any]:
    """A line of the result file."""
    made = [_kept(one) for one in samples]
    name = samples[0].trajectory_id.removeprefix("blake3:")[:32]
    if "pooled" in row:
        return _write_pooled(row, number, made[0], name)
    usage = _usage(made)
    if "custom_id" not in row:
        completions = [_completion(one, logprobs=logprobs) for one in made]
        return {"row": number, "input": row["record"], "completions": completions, "usage": usage}
    text = goes_on(row)
    body = {
        "id": f"cmpl-{name}" if text else f"chatcmpl-{name}",
        "object": "text_completion" if text else "chat.completion",
        "created": 0,
        "model": row["model"],
        "choices": [_choice(one, text=text, logprobs=logprobs) for one in made],
        "usage": usage,
    }
    return _answered(row["custom_id"], body)


def _write_pooled(row: Row, number: int, made: Trajectory, name: str) -> dict[str, Any]:
    if "custom_id" in row:
        return _answered(row["custom_id"], pooled_body(row, made, name))
    usage = pooled_usage(made)
    return {"row": number, "input": row["record"], **pooled_answer(row, made), "usage": usage}


def _answered(custom_id: str, body: dict[str, Any]) -> dict[str, Any]:
    request_id = _request_id(custom_id)
    return {
        "id": request_id,
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": request_id, "body": body},
        "error": None,
    }


def _kept(sample: SampleView) -> Trajectory:
    assert sample.trajectory is not None, "an inference run keeps its bodies"
    return sample.trajectory


def _request_id(custom_id: str) -> str:
    return f"batch_req_{blake3(custom_id.encode()).hexdigest()[:32]}"


def _usage(made: Sequence[Trajectory]) -> dict[str, int]:
    prompt, completion = len(made[0].prompt_ids), sum(len(one.token_ids) for one in made)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _completion(one: Trajectory, *, logprobs: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"text": one.text, "finish_reason": one.ending}
    return {**found, **_tokens(one)} if logprobs else found


def _choice(one: Trajectory, *, text: bool, logprobs: bool) -> dict[str, Any]:
    said = (
        {"text": one.text, "logprobs": None}
        if text
        else {"message": {"role": "assistant", "content": one.text}}
    )
    return {
        "index": one.sample,
        **said,
        "finish_reason": one.ending,
        **(_tokens(one) if logprobs else {}),
    }


def _tokens(one: Trajectory) -> dict[str, Any]:
    return {"token_ids": list(one.token_ids), "token_logprobs": list(one.actor_logprobs)}

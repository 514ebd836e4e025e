"""What is in the files of an inference run whose rows are embedded or scored. Pure but for the writer of Parquet.

A vector is told as float32 has it, as numbers or, where a line of OpenAI's asks for it, in base64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.data.rows.pooled_requests import EMBED, unpack_numbers
from rollout.types import Row, Trajectory


def pooled_answer(row: Row, made: Trajectory) -> dict[str, Any]:
    """A row's vector or score, by its name."""
    numbers = unpack_numbers(made.text)
    return {"embedding": numbers} if row["pooled"] == EMBED else {"score": numbers[0]}


def pooled_body(row: Row, made: Trajectory, name: str) -> dict[str, Any]:
    """The body of an answer to a line of OpenAI's."""
    answer: Mapping[str, Any] = pooled_answer(row, made)
    if row["pooled"] == EMBED and row["encoding"] == "base64":
        answer = {"embedding": made.text}
    kind = "embedding" if row["pooled"] == EMBED else "score"
    return {
        "id": f"{kind}-{name}",
        "object": "list",
        "created": 0,
        "model": row["model"],
        "data": [{"object": kind, "index": 0, **answer}],
        "usage": pooled_usage(made),
    }


def pooled_usage(made: Trajectory) -> dict[str, int]:
    """Tokens of the prompt; there are no others."""
    return {"prompt_tokens": len(made.prompt_ids), "total_tokens": len(made.prompt_ids)}


def pooled_fields(task: str) -> list[tuple[str, Any]]:
    """Columns of a Parquet file that hold the answers of a run with this task."""
    import pyarrow as pa

    named = ("embedding", pa.list_(pa.float32())) if task == "Embed" else ("score", pa.float32())
    return [named, ("prompt_tokens", pa.int64())]

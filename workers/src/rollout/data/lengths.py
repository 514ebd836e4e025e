"""Prompts that are too long for the run: bad records, told by the one function that counts tokens."""

from __future__ import annotations

from collections.abc import Callable

from rollout.data.records import BadRecords, OnBadRecord
from rollout.data.subset import SubsetSource, read_all
from rollout.seams import DataSource
from rollout.types import Row


def limit_prompts(
    source: DataSource,
    count_tokens: Callable[[Row], int],
    tokens_max: int,
    *,
    on_bad: OnBadRecord = "Fail",
) -> tuple[DataSource, BadRecords]:
    """The rows whose prompt has at most ``tokens_max`` tokens, and what was left out.

    Reads the whole source once. Raises DataError naming the rows when they may not be skipped, or when
    none is left.
    """
    kept, bad = [], BadRecords()
    for position, row in enumerate(read_all(source)):
        tokens = count_tokens(row)
        if tokens <= tokens_max:
            kept.append(position)
        else:
            prompt = str(row.get("prompt", ""))[:60]
            bad.add(
                f"row {position}",
                f"the prompt {prompt!r} has {tokens} tokens, at most {tokens_max}",
            )
    bad.settle(f"prompts of at most {tokens_max} tokens", len(kept), on_bad)
    if not bad.num_records:
        return source, bad
    return SubsetSource(source, kept, f"prompts<={tokens_max}"), bad

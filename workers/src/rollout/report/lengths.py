"""Does a run train on shorter samples than its policy says? Lengths by how samples ended.

Whatever leaves samples out by time (over-provisioning, deadlines) or by length favours short ones; so does
a filter that likes easy prompts. Pure: counts of lengths in, a table and what to be warned of out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

COMPARED_MIN = 32
"""Samples on either side before their lengths are compared."""
LONGER_MIN = 1.1
"""What was left out is told of when it is so many times as long as what was trained on."""
UNFINISHED_MIN = 0.01
"""Share of samples given up before their end that is told of."""


def describe_lengths(counts: Mapping[str, Mapping[int | None, int]]) -> dict[str, dict[str, Any]]:
    """By disposition: samples, how many of them never ended, and mean, p50, p95 and longest of the others."""
    return {kind: _describe(by_length) for kind, by_length in sorted(counts.items())}


def _describe(by_length: Mapping[int | None, int]) -> dict[str, Any]:
    whole = sorted((tokens, count) for tokens, count in by_length.items() if tokens is not None)
    number = sum(count for _, count in whole)
    total = sum(tokens * count for tokens, count in whole)
    return {
        "samples": sum(by_length.values()),
        "unfinished": by_length.get(None, 0),
        "tokens_mean": total / number if number else None,
        "tokens_p50": _rank(whole, 0.5, number),
        "tokens_p95": _rank(whole, 0.95, number),
        "tokens_max": whole[-1][0] if whole else None,
    }


def _rank(whole: list[tuple[int, int]], share: float, number: int) -> int | None:
    left = math.ceil(share * number)
    for tokens, count in whole:
        left -= count
        if left <= 0:
            return tokens
    return None


def length_warnings(lengths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a reader must know about what was left out."""
    consumed = lengths.get("consumed")
    if consumed is None or consumed["tokens_mean"] is None:
        return
    number = consumed["samples"] - consumed["unfinished"]
    for kind, row in lengths.items():
        whole = row["samples"] - row["unfinished"]
        enough = kind != "consumed" and min(whole, number) >= COMPARED_MIN
        if enough and row["tokens_mean"] >= LONGER_MIN * consumed["tokens_mean"]:
            yield (
                f"Short samples are favoured: those that ended as {kind} have {row['tokens_mean']:.0f}"
                f" tokens in the mean, those trained on {consumed['tokens_mean']:.0f}."
            )
    timed = sum(lengths[kind]["unfinished"] for kind in ("expired", "surplus") if kind in lengths)
    if timed >= UNFINISHED_MIN * sum(row["samples"] for row in lengths.values()) and timed:
        yield (
            f"{timed} samples were given up before they ended (expired or surplus): long ones are missing"
            " from what was trained on."
        )

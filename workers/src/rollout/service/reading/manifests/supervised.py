"""A loop of supervised fine-tuning: its rows as data, and how it weighed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3

from rollout.rendering.plain import PlainRenderer
from rollout.service.calls import ForwardBackward, LossAnswer
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.manifests.loop import LoopRefused, RecordedLoop
from rollout.service.reading.manifests.rows import LearnedRow, read_supervised, write_row
from rollout.service.reading.steps import StepFold, read_calls

ROWS_MAX = 1_000_000
"""Different rows of a loop, 16 bytes each while they are told apart."""
MEAN_TOLERANCE = 1e-3

WriteRow = Callable[[dict[str, str]], None]


@dataclass(slots=True, kw_only=True)
class WrittenRows:
    """Owns which rows are written already, and what is to be said of them."""

    seen: set[bytes] = field(default_factory=set)
    num_rows: int = 0
    num_other: int = 0
    num_ends: int = 0
    num_blank: int = 0
    longest: int = 2
    in_order: bool = True
    _order: list[bytes] = field(default_factory=list)

    def is_new(self, row: LearnedRow) -> bool:
        """Whether a row has not come before. Raises LoopRefused for one too many."""
        content = np.asarray([len(row.prompt), *row.prompt, *row.answer], "<i8").tobytes()
        key = blake3(content).digest(length=16)
        place = self.num_rows
        self.num_rows += 1
        if key in self.seen:
            self.in_order &= self._order[place % len(self._order)] == key
            return False
        if len(self.seen) >= ROWS_MAX:
            raise LoopRefused(
                f"the loop has more than {ROWS_MAX} different rows; write its data yourself"
            )
        self.in_order &= place == len(self.seen)
        self.seen.add(key)
        self._order.append(key)
        return True

    def take(self, row: LearnedRow, renderer: PlainRenderer) -> dict[str, str] | None:
        """A new row as a record; None for one that no data may hold."""
        text = write_row(renderer, row)
        self.longest = max(self.longest, len(row.prompt) + len(row.answer) + text.adds_end)
        if not text.answer.strip():
            self.num_blank += 1
            return None
        self.num_other += not text.same
        self.num_ends += text.adds_end
        return {"prompt": text.prompt, "answer": text.answer}


@dataclass(slots=True, kw_only=True)
class StepWeights:
    """Owns the weights of a step's rows: whether a loop took the mean over tokens, a sum, or something else."""

    means: int = 0
    sums: int = 0
    others: int = 0
    _weights: list[float] = field(default_factory=list)
    _tokens: int = 0

    def take(self, row: LearnedRow) -> None:
        """The next row of the step."""
        self._weights.append(row.value)
        self._tokens += len(row.answer)

    def end_step(self) -> None:
        """The step was taken."""
        weights = np.asarray(self._weights)
        even = bool(len(weights)) and np.ptp(weights) <= MEAN_TOLERANCE * weights.max()
        if even and abs(weights[0] * self._tokens - 1) <= MEAN_TOLERANCE:
            self.means += 1
        elif even:
            self.sums += 1
        else:
            self.others += 1
        self._weights, self._tokens = [], 0


def write_supervised(
    opened: OpenedModel, loop: RecordedLoop, renderer: PlainRenderer, write: WriteRow
) -> tuple[dict[str, Any], list[str]]:
    """Write the rows; the parts of ``spec.train`` that are of this algorithm, and what they leave out. Raises LoopRefused."""
    rows, weights, fold = WrittenRows(), StepWeights(), StepFold()
    for one in read_calls(opened.book, opened.model.id):
        if (
            isinstance(one.call, ForwardBackward)
            and isinstance(one.answer, LossAnswer)
            and one.call.backward
        ):
            for place, datum in enumerate(one.call.data):
                row = read_supervised(f"call {one.seq}, data[{place}]", datum)
                if row is None:
                    continue
                weights.take(row)
                record = rows.take(row, renderer) if rows.is_new(row) else None
                if record is not None:
                    write(record)
        if fold.take(one) is not None:
            weights.end_step()
    written = len(rows.seen) - rows.num_blank
    if written < loop.sequences_max:
        raise LoopRefused(
            f"a step takes {loop.sequences_max} sequences and the loop has {written} different rows: a manifest's step"
            " takes each row once"
        )
    return _settings(loop, rows), _left_out(loop, rows, weights)


def _settings(loop: RecordedLoop, rows: WrittenRows) -> dict[str, Any]:
    return {
        "algorithm": {"sft": {"batchSize": loop.sequences_max, "maxLength": rows.longest}},
        "data": {"jsonl": {"uri": "rows.jsonl"}, "shuffle": not rows.in_order},
    }


def _left_out(loop: RecordedLoop, rows: WrittenRows, weights: StepWeights) -> list[str]:
    said = [
        (
            weights.sums,
            (
                f"{weights.sums} steps took a sum or another multiple of the mean over tokens: a run takes the mean; of AdamW"
                " epsilon and gradient clipping alone see the scale"
            ),
        ),
        (
            weights.others,
            f"{weights.others} steps weighed their rows differently: a run weighs all tokens alike",
        ),
        (
            not rows.in_order,
            "rows did not come in one order again and again: the run draws an order of its own",
        ),
        (
            len(rows.seen) % loop.sequences_max,
            (
                f"{len(rows.seen)} rows are no whole number of steps of {loop.sequences_max}: the run leaves out the rest of"
                " each pass (data.tailBatch)"
            ),
        ),
        (
            rows.num_ends,
            f"{rows.num_ends} rows end without an end token, and the run trains one behind each",
        ),
        (
            rows.num_other,
            f"{rows.num_other} rows come to other tokens when their texts are encoded again",
        ),
        (
            rows.num_blank,
            f"{rows.num_blank} rows have a blank answer and are left out: no data may have one",
        ),
    ]
    return [text for count, text in said if count]

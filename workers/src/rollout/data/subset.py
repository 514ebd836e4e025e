"""Parts of a data set, and whether two of them overlap. Parts are drawn by the prompt's content.

A prompt that occurs twice lands in the same part, and a row keeps its part when others come or go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from blake3 import blake3

from rollout.data.records import BadRecords
from rollout.errors import DataError
from rollout.seams import DataSource
from rollout.types import Row

Part = Literal["train", "selection", "report"]

READ_ROWS = 1024

OVERLAP_ROWS_MAX = 2_000_000
"""Training rows that an overlap check reads."""


class SubsetSource:
    """Some rows of another source, in its order. ``bad``: the source's bad records, and ``more`` of them."""

    def __init__(
        self,
        source: DataSource,
        positions: Sequence[int],
        name: str,
        more: BadRecords | None = None,
    ) -> None:
        self._source = source
        self.positions = positions
        self.digest = f"{source.digest}/{name}"
        self.bad = bad_records(source).joined(more or BadRecords())

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions of the part."""
        return self._source.rows([self.positions[position] for position in positions])


def bad_records(source: DataSource) -> BadRecords:
    """What was left out of a source; nothing for those that keep no books."""
    found = getattr(source, "bad", None)
    return found if isinstance(found, BadRecords) else BadRecords()


def prompt_hash(row: Row) -> str:
    """64 hex digits over roles and words of what the policy is shown; spacing does not count."""
    root = blake3()
    for message in row["messages"]:
        words = " ".join(message["content"].split())
        root.update(f"{message['role']}\x1f{words}\x1e".encode())
    return root.hexdigest()


def part_of(row: Row, eval_fraction: float, selection_share: float = 0.5) -> Part:
    """Which part a row belongs to; ``selection_share`` of the held-out rows may choose snapshots."""
    place = int(prompt_hash(row)[:13], 16) / 16**13
    if place >= eval_fraction:
        return "train"
    return "selection" if place < eval_fraction * selection_share else "report"


def split_source(
    source: DataSource, eval_fraction: float, part: Part, *, selection_share: float = 0.5
) -> SubsetSource:
    """The rows of one part. Raises DataError when it is empty."""
    positions = [
        position
        for position, row in enumerate(read_all(source))
        if part_of(row, eval_fraction, selection_share) == part
    ]
    if not positions:
        raise DataError(
            f"the {part} part of {len(source)} rows is empty at evalFraction {eval_fraction}; "
            f"give more rows or another fraction"
        )
    return SubsetSource(source, positions, f"{part}@{eval_fraction}/{selection_share}")


def read_all(source: DataSource) -> Iterable[Row]:
    """Every row, a bounded number at a time."""
    for start in range(0, len(source), READ_ROWS):
        yield from source.rows(range(start, min(start + READ_ROWS, len(source))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Evaluation prompts that are also trained on: how many, of how many, and a few of them."""

    num_rows: int
    num_eval: int
    examples: tuple[str, ...]


def find_overlap(train: DataSource, evaluation: DataSource, examples_max: int = 3) -> Overlap:
    """Compare two sources by prompt hash, at most ``OVERLAP_ROWS_MAX`` training rows."""
    seen = {prompt_hash(row) for row in islice(read_all(train), OVERLAP_ROWS_MAX)}
    shared = [row["prompt"] for row in read_all(evaluation) if prompt_hash(row) in seen]
    return Overlap(
        num_rows=len(shared), num_eval=len(evaluation), examples=tuple(shared[:examples_max])
    )

"""The order in which the rows of a batch are handed out. Pure.

Rows go by windows of the file. In a window those go first that may take longest, in bands: no row of a later band may
take as long as one of an earlier band, so that no engine ends alone on a long row. In a band, rows with equal beginnings
go one after the other, so that an engine computes a beginning once. The order depends on the rows alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from blake3 import blake3

from rollout.types import Row

ORDER_FORMAT = 1
"""Raised when equal rows would get another order: a run goes on in the order that it began with, or not at all."""
WINDOW_ROWS = 8192
"""Rows of a window at most; the windows of a batch are equally long."""
BEGINNINGS = (256, 1024, 4096, 16384)
"""Characters in which the beginnings of rows are compared, the shortest first."""
CHARACTERS_PER_NEW_TOKEN = 64
"""A new token takes as long as so many characters of a prompt: it waits for a step of its own."""


class RowShapes:
    """What the order needs of every row: 40 bytes each."""

    def __init__(self) -> None:
        self.costs = array("Q")
        self.beginnings = tuple(array("Q") for _ in BEGINNINGS)

    def __len__(self) -> int:
        return len(self.costs)

    def add(self, text: str, new_tokens: int) -> None:
        """One more row: all that its prompt says, and the most new tokens it may have."""
        self.costs.append(len(text) + CHARACTERS_PER_NEW_TOKEN * new_tokens)
        for found, length in zip(self.beginnings, BEGINNINGS, strict=True):
            digest = blake3(text[:length].encode("utf-8", "surrogatepass")).digest(8)
            found.append(int.from_bytes(digest, "little"))


def prompt_text(row: Row) -> str:
    """Everything that a row's messages say, as far as their beginnings are compared."""
    return "\n".join(f"{turn['role']}\n{turn['content']}" for turn in row["messages"])


def plan_order(shapes: RowShapes, window_rows: int = WINDOW_ROWS) -> Sequence[int]:
    """The positions of all rows, in the order in which they are handed out."""
    number = len(shapes)
    windows = max(1, -(-number // window_rows))
    order = array("Q")
    for index in range(windows):
        start, stop = number * index // windows, number * (index + 1) // windows
        order.extend(_order_window(shapes, range(start, stop)))
    return order


def _order_window(shapes: RowShapes, positions: range) -> list[int]:
    """One window: by band, then by beginning with the group of the longest row first, then the longer row first."""
    costs = shapes.costs
    groups = {position: _groups(shapes, position) for position in positions}
    firsts: dict[tuple[int, ...], tuple[int, int]] = {}
    for position in positions:
        for group in groups[position]:
            mine = (-costs[position], position)
            firsts[group] = min(firsts.get(group, mine), mine)
    return sorted(
        positions,
        key=lambda position: (
            -costs[position].bit_length(),
            *(firsts[group] for group in groups[position]),
            (-costs[position], position),
        ),
    )


def _groups(shapes: RowShapes, position: int) -> list[tuple[int, ...]]:
    """The groups of a row, the widest first: those of its band that begin as it does."""
    marks = [shapes.costs[position].bit_length(), *(found[position] for found in shapes.beginnings)]
    return [tuple(marks[: level + 1]) for level in range(1, len(marks))]

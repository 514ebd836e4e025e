"""The order of a run's tasks, and where it stands. Pure.

Task ordinal = epoch x length + slot in that epoch's shuffled order. Everything is computed from the
ordinal: a cursor that is resumed anywhere goes on exactly as if it had never stopped.

Example: 10 rows, 2 epochs, batches of 8 with ``Short``: ordinals 0-7, 8-15 (straddling the epochs),
16-19; with ``Drop`` the last four are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout.data.permutation import permute, shuffle_key


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    """How ``length`` rows are visited.

    ``epochs`` None repeats for ever. ``window`` shuffles within consecutive blocks of so many rows
    only (a stream's shuffle buffer); None shuffles the whole epoch.
    """

    length: int
    seed: int
    shuffle: bool = True
    window: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError("a data order needs at least one row")
        if self.window is not None and self.window < 1:
            raise ValueError("window: expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """One task: its ordinal, and the row it is made of (``position`` in the *unshuffled* data)."""

    ordinal: int
    epoch: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCursor:
    """Where the data stands: the next ordinal, its epoch and its slot in that epoch's order.

    ``exhausted`` is explicit: no ordinal will follow, whatever the numbers say.
    """

    next_ordinal: int = 0
    epoch: int = 0
    position: int = 0
    exhausted: bool = False


def place(order: DataOrder, ordinal: int) -> TaskPlace:
    """The row of one task. Raises ValueError for an ordinal that the order does not have."""
    if ordinal < 0 or is_past_end(order, ordinal):
        raise ValueError(f"ordinal {ordinal} is outside the data's {total(order)} tasks")
    epoch, slot = divmod(ordinal, order.length)
    position = _shuffled(order, epoch, slot) if order.shuffle else slot
    return TaskPlace(ordinal=ordinal, epoch=epoch, position=position)


def _shuffled(order: DataOrder, epoch: int, slot: int) -> int:
    if order.window is None:
        return permute(slot, order.length, shuffle_key(order.seed, epoch))
    block, offset = divmod(slot, order.window)
    start = block * order.window
    size = min(order.window, order.length - start)
    return start + permute(offset, size, shuffle_key(order.seed, epoch, block))


def total(order: DataOrder) -> int | None:
    """How many tasks there are, or None without a bound on epochs."""
    return None if order.epochs is None else order.epochs * order.length


def is_past_end(order: DataOrder, ordinal: int) -> bool:
    """Whether the order ends before ``ordinal``."""
    end = total(order)
    return end is not None and ordinal >= end


def cursor_at(order: DataOrder, ordinal: int) -> DataCursor:
    """The cursor that has handed out every ordinal below ``ordinal``."""
    epoch, slot = divmod(ordinal, order.length)
    return DataCursor(
        next_ordinal=ordinal, epoch=epoch, position=slot, exhausted=is_past_end(order, ordinal)
    )


def take(
    order: DataOrder, cursor: DataCursor, count: int
) -> tuple[tuple[TaskPlace, ...], DataCursor]:
    """Up to ``count`` tasks from the cursor, fewer only at the end, and the cursor after them."""
    if cursor.exhausted:
        return (), cursor
    end = total(order)
    stop = cursor.next_ordinal + count if end is None else min(cursor.next_ordinal + count, end)
    places = tuple(place(order, ordinal) for ordinal in range(cursor.next_ordinal, stop))
    return places, cursor_at(order, stop)

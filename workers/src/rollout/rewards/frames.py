"""What a reward host and its child say to each other, frame by frame (``rollout.common.frames``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollout.types import Completion, Message, Row

ANSWER_BYTES_MAX = 64 << 20
COST = "cost/"
"""What the names of values begin with that say what an answer cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One batch; the three sequences have one length."""

    prompts: Sequence[tuple[Message, ...]]
    completions: Sequence[Completion]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAnswer:
    """``values`` as the function returned them, or the failure and the first row that shows it alone.

    ``lost`` is filled when the failure was no fault of the function's: the rows that met it. ``values`` are then those of
    the others, where they are known, with None for the lost ones.
    """

    values: Any = None
    failure: str | None = None
    row_index: int | None = None
    lost: tuple[int, ...] = ()

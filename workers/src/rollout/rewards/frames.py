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
    """The conversation before each completion."""
    completions: Sequence[Completion]
    """What is judged."""
    rows: Sequence[Row]
    """The row of each one's task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAnswer:
    """What the function returned, or how it failed."""

    values: Any = None
    """As they were returned; with ``lost`` those of the others, where they are known, and None for the lost ones."""
    failure: str | None = None
    """None: there was none."""
    row_index: int | None = None
    """First row that shows the failure alone; None: not found."""
    lost: tuple[int, ...] = ()
    """Rows that met a failure that was no fault of the function's."""

"""The last step that was given to a tracker, kept beside what it wrote; replaced atomically.

A step is (lineage, step): after a fork the steps behind its base come again, in a younger lineage, and are
not the ones that were written before.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "last-step"

Place = tuple[int, int]
"""(lineage, step)."""
NOTHING: Place = (0, -1)
"""Before the first step."""


def is_new(last: Place, place: Place) -> bool:
    """Whether a step is still to be written after ``last``: a later one, or one of a younger lineage.

    A step of an older lineage is the base of what was written already, or dead.
    """
    return place > last


def place_of(step: int, metrics: Mapping[str, Any]) -> Place:
    """(lineage, step) of a step's metrics."""
    return int(metrics.get("lineage", 0)), step


def read_last_step(folder: Path) -> Place:
    """The last step, or ``NOTHING`` before the first; a file that holds a step alone is of lineage 0."""
    try:
        words = (folder / FILE).read_text().split()
    except FileNotFoundError:
        return NOTHING
    return (int(words[0]), int(words[1])) if len(words) > 1 else (0, int(words[0]))


def write_last_step(folder: Path, place: Place) -> None:
    """Remember a step."""
    work = folder / f".{FILE}.{os.getpid()}"
    work.write_text(f"{place[0]} {place[1]}\n")
    work.replace(folder / FILE)


def flat_numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers among metrics, nested ones as ``outer/inner``; the rest has no place in a plot."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found.update(flat_numbers(value, f"{prefix}{name}/"))
        elif isinstance(value, int | float) and math.isfinite(value):
            found[f"{prefix}{name}"] = float(value)
    return found

"""The last step that was given to a tracker, kept beside what it wrote; replaced atomically."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "last-step"


def read_last_step(folder: Path) -> int:
    """The last step, or -1 before the first."""
    try:
        return int((folder / FILE).read_text())
    except FileNotFoundError:
        return -1


def write_last_step(folder: Path, step: int) -> None:
    """Remember ``step``."""
    work = folder / f".{FILE}.{os.getpid()}"
    work.write_text(f"{step}\n")
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

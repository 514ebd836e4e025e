"""One JSON object a step, in order, appended to a file; what a crash left half-written is cut off."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.errors import StoreError
from rollout.run_events import RunEnd
from rollout.tracking.last_step import NOTHING, is_new, place_of

TAIL_BYTES = 1 << 20
"""Longest line; the last step is looked for in so many bytes at the end."""


class JsonlTracker:
    """Appends to ``path``; numbers that are not finite are written as null."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_step = NOTHING
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._recover()
        except OSError as error:
            raise StoreError(f"metrics file {path} cannot be written: {error}") from error

    def _recover(self) -> None:
        """Cut off an unfinished last line and find the last step."""
        size = self._path.stat().st_size
        with self._path.open("rb") as file:
            file.seek(max(0, size - TAIL_BYTES))
            tail = file.read()
        whole = tail[: tail.rfind(b"\n") + 1]
        self._file.truncate(size - len(tail) + len(whole))
        lines = whole.splitlines()
        if lines:
            last = json.loads(lines[-1])
            self.last_step = place_of(int(last["step"]), last)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one step; a step that is already there is left alone. Raises StoreError."""
        place = place_of(step, metrics)
        if not is_new(self.last_step, place):
            return
        line = json.dumps({**metrics, "step": step}, default=_plain)
        try:
            self._file.write(_finite(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(f"metrics file {self._path} cannot be written: {error}") from error
        self.last_step = place

    def close(self, outcome: RunEnd | None = None) -> None:
        """Close the file; idempotent."""
        del outcome
        self._file.close()


def _finite(line: str) -> str:
    """``json`` writes NaN and Infinity, which are not JSON; only then is the line built again."""
    if "NaN" not in line and "Infinity" not in line:
        return line
    return json.dumps(_without_nan(json.loads(line)))


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return value


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a metric of type {type(value).__name__} cannot be written as JSON")

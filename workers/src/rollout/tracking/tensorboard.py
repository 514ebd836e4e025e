"""TensorBoard event files under the run's folder, written without torch or TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.errors import SpecError, StoreError
from rollout.tracking.last_step import flat_numbers, read_last_step, write_last_step


class TensorBoardTracker:
    """Scalars by name; every step is on disk before ``log`` returns."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise SpecError(
                "tracking: tensorboard is not installed; pip install 'rollout-rl[tensorboard]'"
            ) from error
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.last_step = read_last_step(folder)
            self._writer = EventFileWriter(str(folder))
        except OSError as error:
            raise StoreError(f"TensorBoard folder {folder} cannot be written: {error}") from error

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one step's numbers; a step already written is left alone."""
        if step <= self.last_step:
            return
        from tensorboard.compat.proto import event_pb2

        event: Any = event_pb2.Event(step=step, wall_time=time.time())  # pyrefly: ignore
        for name, number in flat_numbers(metrics).items():
            event.summary.value.add(tag=name, simple_value=number)
        self._writer.add_event(event)
        self._writer.flush()
        write_last_step(self._folder, step)
        self.last_step = step

    def close(self) -> None:
        """Close the event file; idempotent."""
        self._writer.close()

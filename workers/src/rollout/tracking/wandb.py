"""Weights and Biases: one W&B run per run, by its uid; offline mode writes files to be synced later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rollout.errors import SpecError
from rollout.run_events import RunEnd
from rollout.tracking.last_step import (
    flat_numbers,
    is_new,
    place_of,
    read_last_step,
    write_last_step,
)

INIT_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbRun:
    """Which W&B run this is. ``run_id`` is the same for every attempt: that is what resumes it."""

    project: str
    run_id: str
    name: str
    entity: str | None = None
    mode: Literal["Online", "Offline"] = "Online"


class WandbTracker:
    """Logs a step's numbers under its step."""

    def __init__(self, folder: Path, run: WandbRun, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise SpecError(
                "tracking: wandb is not installed; pip install 'rollout-rl[wandb]'"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.last_step = read_last_step(folder)
        settings = wandb.Settings(
            console="off",
            init_timeout=INIT_SECONDS_MAX,
            silent=True,
            x_disable_stats=True,
            disable_git=True,
            disable_code=True,
        )
        try:
            self._run = wandb.init(
                project=run.project,
                entity=run.entity,
                id=run.run_id,
                name=run.name,
                resume="allow" if run.mode == "Online" else None,
                mode="online" if run.mode == "Online" else "offline",
                dir=str(folder),
                config=dict(config),
                settings=settings,
            )
        except wandb.errors.Error as error:
            raise SpecError(
                f"tracking: W&B project {run.project!r} cannot be opened ({error}); give WANDB_API_KEY "
                f"in env, or set mode: Offline"
            ) from error

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log one step; a step already logged is left alone."""
        place = place_of(step, metrics)
        if not is_new(self.last_step, place):
            return
        # W&B throws away what is not behind its last row: after a fork rows go on, ``step`` says the step.
        self._run.log(flat_numbers(metrics), step=max(step, self._run.step), commit=True)
        write_last_step(self._folder, place)
        self.last_step = place

    def close(self, outcome: RunEnd | None = None) -> None:
        """Flush and finish; idempotent."""
        del outcome
        self._run.finish()

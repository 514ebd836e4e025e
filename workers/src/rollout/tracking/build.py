"""From the API's ``tracking`` to trackers. The metrics file is always one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.seams import Tracker
from rollout.tracking.jsonl import JsonlTracker
from rollout.tracking.tensorboard import TensorBoardTracker
from rollout.tracking.wandb import WandbRun, WandbTracker
from rollout_api.v1alpha1.operations import Tracking

METRICS_FILE = "metrics.jsonl"


def build_trackers(
    tracking: Sequence[Tracking],
    run_dir: Path,
    *,
    name: str,
    uid: str,
    config: Mapping[str, Any] | None = None,
) -> tuple[Tracker, ...]:
    """Open all trackers of a run; each goes on where it stopped.

    ``name`` and ``uid`` are the run's; ``config`` is what W&B shows beside the curves. Raises SpecError
    for a kind that this version, or this installation, does not have.
    """
    refuse_unsupported(tracking)
    trackers: list[Tracker] = [JsonlTracker(run_dir / METRICS_FILE)]
    for item in tracking:
        if item.tensorboard is not None:
            trackers.append(TensorBoardTracker(run_dir / "tracking" / "tensorboard"))
        elif item.wandb is not None:
            which = WandbRun(
                project=item.wandb.project,
                entity=item.wandb.entity,
                mode=item.wandb.mode,
                run_id=uid,
                name=name,
            )
            trackers.append(WandbTracker(run_dir / "tracking" / "wandb", which, config or {}))
    return tuple(trackers)


def refuse_unsupported(tracking: Sequence[Tracking]) -> None:
    """Raise SpecError before anything is opened."""
    for index, item in enumerate(tracking):
        if item.mlflow is not None:
            raise SpecError(
                f"spec.tracking[{index}].mlflow: MLflow is not supported by this version; use "
                f"tensorboard, wandb or the metrics file"
            )

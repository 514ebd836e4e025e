"""From the API's ``tracking`` to trackers. The metrics file is always one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.seams import Tracker
from rollout.tracking.jsonl import JsonlTracker
from rollout.tracking.mlflow import MlflowRun, MlflowTracker
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
    folders: Sequence[Path] = (),
    attempt: int = 1,
) -> tuple[Tracker, ...]:
    """Open all trackers of a run; each goes on where it stopped.

    ``name``, ``uid`` and ``attempt`` are the run's; ``config`` is what W&B and MLflow show beside the curves; plugins lie in
    ``folders``. Raises SpecError for a kind that this installation does not have, or a server that does not answer.
    """
    trackers: list[Tracker] = [JsonlTracker(run_dir / METRICS_FILE)]
    for index, item in enumerate(tracking):
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
        elif item.mlflow is not None:
            place = MlflowRun(
                uri=item.mlflow.uri, experiment=item.mlflow.experiment, uid=uid, name=name
            )
            trackers.append(MlflowTracker(run_dir / "tracking" / "mlflow", place, config or {}))
        elif item.plugin is not None:
            from rollout.plugins.sidecar.kinds.tracker import PluginTracker, TrackedRun
            from rollout.plugins.sidecar.named import open_tracker, parameters_of

            plugin = open_tracker(item.plugin, folders, f"spec.tracking[{index}].plugin")
            told = TrackedRun(uid=uid, name=name, attempt=attempt, metrics=run_dir / METRICS_FILE)
            trackers.append(PluginTracker(plugin, parameters_of(item.plugin), told))
    return tuple(trackers)

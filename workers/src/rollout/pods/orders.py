"""Reads what the operator has written for a pod."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rollout.errors import SpecError
from rollout_api.worker import WorkerOrder


def read_order(path: Path) -> WorkerOrder:
    """The order. Raises SpecError when it is not there or not valid."""
    try:
        return WorkerOrder.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SpecError(f"{path} is not a worker's order: {error}") from error


def config_path(order: WorkerOrder) -> Path:
    """Where a pod's processes find their configuration."""
    return Path(order.layout.run_dir) / "worker.json"

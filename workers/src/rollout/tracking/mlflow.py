"""MLflow: one MLflow run per run, found again by its uid; without a URI a SQLite file beside the run.

The store itself remembers the last step: every step's numbers go in with a metric ``step``, so that a
process killed anywhere goes on where the store stands.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollout.errors import SpecError, StoreError
from rollout.run_events import RunEnd
from rollout.tracking.last_step import Place, flat_numbers, is_new, place_of

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

UID_TAG = "rollout.uid"
LAST_STEP, LAST_STEP_TAG = "step", "rollout.last-step"
METRICS_MAX, PARAMETERS_MAX = 1000, 100
"""Most in one request, by MLflow's protocol."""
TEXT_MAX = 500
"""Longest value of a parameter that every store takes."""
STATUSES = {"Succeeded": "FINISHED", "Failed": "FAILED", "Stopped": "KILLED"}
"""MLflow's words for how a run has ended."""
BOUNDS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""A server that is gone must not hold a run up; set only where the user has not. Nobody is called home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowRun:
    """Which MLflow run this is. ``uri`` None: ``mlflow.db`` in the tracker's folder."""

    experiment: str
    uid: str
    name: str
    uri: str | None = None


class MlflowTracker:
    """Logs a step's numbers under its step."""

    def __init__(self, folder: Path, run: MlflowRun, config: Mapping[str, Any]) -> None:
        client_of, error_of = _import()
        folder.mkdir(parents=True, exist_ok=True)
        uri = run.uri or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self._error = error_of
        try:
            self._client: MlflowClient = client_of(tracking_uri=uri)
            found = self._open(run, None if run.uri else folder)
            self._describe(found, config)
        except error_of as error:
            raise SpecError(
                f"tracking: MLflow at {uri} cannot be opened ({error}); start the server, correct "
                "spec.tracking mlflow.uri, or leave it out to write beside the run"
            ) from error
        self._run_id = found.info.run_id
        self.last_step = _read_last(found)

    def _open(self, run: MlflowRun, artifacts: Path | None) -> Run:
        """The MLflow run of this uid, running again; made when there is none."""
        experiment = self._client.get_experiment_by_name(run.experiment)
        if experiment is None:
            place = None if artifacts is None else (artifacts / "artifacts").absolute().as_uri()
            number = self._client.create_experiment(run.experiment, artifact_location=place)
        else:
            number = experiment.experiment_id
        known = self._client.search_runs([number], f"tags.`{UID_TAG}` = '{run.uid}'")
        if not known:
            return self._client.create_run(number, tags={UID_TAG: run.uid}, run_name=run.name)
        self._client.update_run(known[0].info.run_id, status="RUNNING")
        return known[0]

    def _describe(self, found: Run, config: Mapping[str, Any]) -> None:
        """The run's settings. What is there stays: MLflow takes each but once."""
        from mlflow.entities import Param

        missing = [
            Param(name, text) for name, text in flat_texts(config) if name not in found.data.params
        ]
        for part in _parts(missing, PARAMETERS_MAX):
            self._client.log_batch(found.info.run_id, params=part)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log one step; a step already logged is left alone. Raises StoreError."""
        place = place_of(step, metrics)
        if not is_new(self.last_step, place):
            return
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        numbers = flat_numbers(metrics)
        numbers.pop(LAST_STEP, None)
        found = [Metric(metric_name(name), value, now, step) for name, value in numbers.items()]
        # Last, so that a step counts as logged only when all of it is there.
        found.append(Metric(LAST_STEP, float(step), now, step))
        try:
            for part in _parts(found, METRICS_MAX):
                self._client.log_batch(self._run_id, metrics=part)
            tag = RunTag(LAST_STEP_TAG, f"{place[0]} {place[1]}")
            self._client.log_batch(self._run_id, tags=[tag])
        except self._error as error:
            raise StoreError(f"MLflow does not take step {step}: {error}") from error
        self.last_step = place

    def close(self, outcome: RunEnd | None = None) -> None:
        """Mark the run as it has ended, and one that has not as killed, until it goes on; idempotent."""
        status = STATUSES.get(outcome.kind if outcome else "Stopped", "FAILED")
        try:
            self._client.set_terminated(self._run_id, status=status)
        except self._error as error:
            raise StoreError(f"MLflow cannot be told of the end: {error}") from error


def _read_last(found: Run) -> Place:
    """The last step that is in the store whole."""
    words = found.data.tags.get(LAST_STEP_TAG, "").split()
    if len(words) == 2:
        return int(words[0]), int(words[1])
    # A run that an older version began.
    return 0, int(found.data.metrics.get(LAST_STEP, -1))


def _import() -> tuple[type[MlflowClient], type[Exception]]:
    for name, value in BOUNDS.items():
        os.environ.setdefault(name, value)
    try:
        import alembic  # noqa: F401 - what the SQLite store needs
        import sqlalchemy  # noqa: F401 - what the SQLite store needs
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise SpecError(
            "tracking: mlflow is not installed; pip install 'rollout-rl[mlflow]'"
        ) from error
    return MlflowClient, MlflowException


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def metric_name(name: str) -> str:
    """A name that MLflow takes: ``pass@4`` is ``pass_at_4``."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def flat_texts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings by path, as texts of a length that every store takes."""
    for path, value in _walk(config, ""):
        yield metric_name(path), str(value)[:TEXT_MAX]


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}.{index}")
    else:
        yield path, value

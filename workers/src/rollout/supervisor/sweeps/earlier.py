"""Which run of this machine an earlier life of a sweep has left of a point: reads, and decides."""

from __future__ import annotations

from pathlib import Path

from rollout.errors import SpecError
from rollout.runs.identity import spec_identity
from rollout.runs.run_dir import RunDir, find_run_dirs
from rollout.runs.snapshots.places import read_config
from rollout_api.v1alpha1.run import RolloutRunSpec


def find_earlier(home: Path, name: str, wanted: RolloutRunSpec) -> RunDir | None:
    """The newest run of this name that is the same experiment and can be gone on with."""
    for run in reversed(find_run_dirs(home, name)):
        if not run.worker_config.exists():
            continue
        try:
            spec = read_config(run).spec
        except SpecError:
            continue  # written by another version, or damaged: it is left alone
        if _is_same(spec, wanted) and _steps(spec) <= _steps(wanted):
            return run
    return None


def _is_same(one: RolloutRunSpec, other: RolloutRunSpec) -> bool:
    return (
        spec_identity(one) == spec_identity(other)
        and one.evaluations == other.evaluations
        and _begins_with(one) == _begins_with(other)
        and (one.train and one.train.epochs) == (other.train and other.train.epochs)
    )


def _begins_with(spec: RolloutRunSpec) -> str | None:
    given = spec.restore_from.object if spec.restore_from is not None else None
    return None if given is None else given.digest


def _steps(spec: RolloutRunSpec) -> float:
    most = spec.train.max_steps if spec.train is not None else None
    return float("inf") if most is None else most


def reaches(run: RunDir, wanted: RolloutRunSpec) -> bool:
    """Whether a run was to make as many steps as is wanted of it now."""
    return _steps(read_config(run).spec) == _steps(wanted)

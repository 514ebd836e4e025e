"""What the status says of snapshots: the coordinator's word, kept where a later word says less. Pure."""

from __future__ import annotations

from typing import Any

from rollout_api.v1alpha1.run_status import SnapshotSummary
from rollout_operator.run.plan.model import Observed


def describe_snapshots(observed: Observed) -> dict[str, Any]:
    """``lastSnapshot`` and ``best``; a coordinator that was started again may have packed no model yet."""
    status, progress = observed.status, observed.status.progress
    if progress is None:
        return {}
    found = {
        "lastSnapshot": _newest(status.last_snapshot, progress.last_snapshot),
        "best": _newest(status.best, progress.best),
    }
    return {
        name: summary.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, summary in found.items()
        if summary is not None
    }


def _newest(known: SnapshotSummary | None, told: SnapshotSummary | None) -> SnapshotSummary | None:
    if known is None or told is None or known.name != told.name:
        return told or known
    return (
        told
        if told.model_uri is not None
        else told.model_copy(update={"model_uri": known.model_uri})
    )

"""One sweep as its object and its events say it: its runs with settings, state, value, and what a fork began from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout.cluster.kinds import SWEEP, Reference
from rollout.cluster.objects import Object, dig
from rollout.cluster.reading import read_events
from rollout.cluster.sweeps import SweptRow, parameter_names, sweep_rows
from rollout.console.cluster.lines import SweepLine, sweep_line
from rollout.console.cluster.run_view import (
    EVENTS_MAX,
    ConditionRow,
    EventRow,
    condition_row,
    event_row,
)
from rollout.errors import KubeError, ObjectNotFound

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster

METRICS = {"RewardMean": "mean reward", "BestEvaluation": "best evaluation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSweep:
    """One sweep. ``parameters`` head the values of ``runs``; ``events`` is None where the viewer may not list them."""

    line: SweepLine
    uid: str
    suspended: bool
    parallelism: int
    metric: str
    parameters: tuple[str, ...]
    runs: tuple[SweptRow, ...]
    conditions: tuple[ConditionRow, ...]
    events: tuple[EventRow, ...] | None


def read_sweep(cluster: Cluster, name: str, *, with_events: bool) -> ClusterSweep:
    """What the page of a sweep shows; ``cluster`` is its namespace. Raises ObjectNotFound, KubeError."""
    try:
        found = cluster.get(Reference(kind=SWEEP, name=name))
        events = read_events(cluster, found, ()) if with_events else None
    except ObjectNotFound as error:
        message = f"there is no sweep {name} in namespace {cluster.namespace}"
        raise ObjectNotFound(message) from error
    except KubeError as error:
        raise KubeError(f"the console's own account could not read it: {error}") from error
    return describe_sweep(found, events)


def describe_sweep(found: Object, events: Sequence[Object] | None) -> ClusterSweep:
    """The page of a sweep from what was read. Pure."""
    metric = str(dig(found, "spec.objective.metric") or "RewardMean")
    newest = None if events is None else list(events)[-EVENTS_MAX:][::-1]
    return ClusterSweep(
        line=sweep_line(found),
        uid=dig(found, "metadata.uid") or "",
        suspended=bool(dig(found, "spec.suspend")),
        parallelism=dig(found, "spec.parallelism") or 1,
        metric=METRICS.get(metric, metric),
        parameters=parameter_names(found),
        runs=tuple(sweep_rows(found)),
        conditions=tuple(map(condition_row, dig(found, "status.conditions") or ())),
        events=None if newest is None else tuple(map(event_row, newest)),
    )

"""A RolloutSweep on one machine: the points that it comes to, with the names and settings that its runs have in a cluster.

Refuses what only a cluster does. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.validation import require_valid
from rollout.supervisor.sweeps.halving import Halving
from rollout.supervisor.sweeps.points import Axis, Grid, Point, place_document, settle_point
from rollout_api.names import sweep_run_name
from rollout_api.sweeps.halving import halving_rule
from rollout_api.sweeps.points import Values, plan_points
from rollout_api.sweeps.settable import find_settable
from rollout_api.v1alpha1.sweep import RolloutSweep, SweepParameter

KIND = "RolloutSweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSweep:
    """What is asked for. ``halving`` None: every point goes to its end. ``ranked_by``: the metric of the page, where one is said."""

    name: str
    points: tuple[Point, ...]
    grid: Grid
    parallel: int
    halving: Halving | None
    forks_max: int
    ranked_by: str | None


def is_sweep(document: Document) -> bool:
    """Whether a document is of this kind."""
    return document.data.get("kind") == KIND


def plan_sweep(document: Document) -> PlannedSweep:
    """The points of a RolloutSweep. Raises SpecError, with file and line, also for a run that could not be."""
    require_valid([document])
    sweep = RolloutSweep.model_validate(document.data)
    spec, name = sweep.spec, sweep.metadata.name
    if spec.suspend:
        raise SpecError(
            f"{document.source}: spec.suspend: a sweep on one machine is stopped by Ctrl-C and goes on when the same command is"
            " given again; leave it out"
        )
    grid = Grid(base=_base(document), axes=tuple(map(_axis, spec.parameters)))
    rule = halving_rule(spec)
    metric = spec.objective.metric
    return PlannedSweep(
        name=name,
        points=tuple(
            _point(grid, sweep_run_name(name, index), values)
            for index, values in enumerate(plan_points(spec))
        ),
        grid=grid,
        parallel=spec.parallelism,
        halving=None if rule is None else Halving(rule=rule, metric=metric),
        forks_max=0 if spec.forks is None else spec.forks.max,
        ranked_by="reward" if metric == "RewardMean" else None,
    )


def _base(document: Document) -> Document:
    """The template as a run, with absolute paths."""
    template: Mapping[str, Any] = document.data["spec"]["template"]
    data = {
        "apiVersion": document.data["apiVersion"],
        "kind": "RolloutRun",
        "metadata": {"name": document.data["metadata"]["name"]},
        "spec": template["spec"],
    }
    return place_document(Document(source=document.source, data=data, lines={}))


def _axis(parameter: SweepParameter) -> Axis:
    field, texts = find_settable(parameter.field), parameter.values or ()
    return Axis(
        path=parameter.field,
        values=tuple(map(field.parse, texts)),
        texts=texts,
        parameter=parameter,
    )


def _point(grid: Grid, name: str, values: Values) -> Point:
    pairs = zip(grid.axes, values, strict=True)
    settings = {axis.path: find_settable(axis.path).parse(text) for axis, text in pairs}
    return settle_point("run", grid.base, name, settings)

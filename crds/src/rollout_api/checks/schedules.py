"""Snapshots by a schedule: times that there are, steps that have anchors, and a place where objects and bytes go together."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.fields.cron import FORM, find_zone, next_time, parse_cron
from rollout_api.problems import Problem
from rollout_api.v1alpha1.operations import SnapshotSchedule
from rollout_api.v1alpha1.run import RolloutRunSpec

_PATH = "spec.snapshots.schedules"
_LEAP_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
RESERVED = frozenset({"suspend", "end", "best"})
"""Names of snapshots that no schedule asks for."""


def schedules_are_of_a_cluster(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A schedule makes objects of a run that trains, and nobody keeps them on one machine."""
    asked = {
        "schedules": bool(spec.snapshots.schedules),
        "onSuspend": spec.snapshots.on_suspend,
        "atEnd": spec.snapshots.at_end,
        "best": spec.snapshots.best,
    }
    for field in (f"spec.snapshots.{name}" for name, wanted in asked.items() if wanted):
        if spec.train is None:
            yield not_supported(field, "a snapshot of a run that trains nothing", "leave it out")
        if facts.platform == "local":
            fix = "leave it out, and take one by rollout snapshot create RUN, whenever you like"
            yield not_supported(field, "a snapshot that a run on one machine makes by itself", fix)


def the_best_is_an_anchor(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The best version is one that an evaluation has measured, and a snapshot is of an anchor."""
    if not spec.snapshots.best:
        return
    chosen = next(((n, one) for n, one in enumerate(spec.evaluations) if one.selects), None)
    if chosen is None:
        yield Problem(
            field="spec.snapshots.best",
            reason="NothingSelects",
            message="no evaluation says which version is the best",
            fix="set selects: true in one of spec.evaluations, or leave best out",
        )
        return
    index, evaluation = chosen
    anchors = spec.snapshots.every_steps
    if evaluation.every_steps is not None and evaluation.every_steps % anchors:
        yield _invalid(
            f"spec.evaluations[{index}].everySteps",
            f"{evaluation.every_steps} is no multiple of snapshots.everySteps ({anchors}), and snapshots.best is of an anchor",
            "make it a multiple, change snapshots.everySteps, or leave snapshots.best out",
        )


def schedules_have_times(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Names that are free, five fields that come to a time, zones that are known, steps that have an anchor."""
    for index, schedule in enumerate(spec.snapshots.schedules):
        path = f"{_PATH}[{index}]"
        if schedule.name in RESERVED:
            yield Problem(
                field=f"{path}.name",
                reason="InvalidValue",
                message=f"{schedule.name!r} names the snapshots that a run makes by itself",
                fix="write another name",
            )
        yield from _find_bad_times(schedule, path)
        yield from _find_bad_steps(schedule, path, spec.snapshots.every_steps)


def _find_bad_times(schedule: SnapshotSchedule, path: str) -> Iterator[Problem]:
    if schedule.cron is None:
        if schedule.time_zone is not None or schedule.starting_deadline_seconds is not None:
            name = "timeZone" if schedule.time_zone is not None else "startingDeadlineSeconds"
            yield Problem(
                field=f"{path}.{name}",
                reason="InvalidValue",
                message=f"{name} goes with cron, and this schedule counts steps",
                fix="leave it out",
            )
        return
    try:
        zone = find_zone(schedule.time_zone)
    except ValueError as error:
        fix = "write its IANA name"
        yield _invalid(f"{path}.timeZone", str(error), fix)
        return
    try:
        cron = parse_cron(schedule.cron)
    except ValueError as error:
        yield _invalid(f"{path}.cron", str(error), FORM)
        return
    if next_time(cron, zone, _LEAP_YEAR) is None:
        yield _invalid(f"{path}.cron", f"{schedule.cron!r} is a time that never comes", FORM)


def _find_bad_steps(schedule: SnapshotSchedule, path: str, anchors: int) -> Iterator[Problem]:
    if schedule.every_steps is None or schedule.every_steps % anchors == 0:
        return
    higher = (schedule.every_steps // anchors + 1) * anchors
    yield _invalid(
        f"{path}.everySteps",
        f"{schedule.every_steps} is no multiple of snapshots.everySteps ({anchors}), and a snapshot is of an anchor",
        f"write {higher}, or change snapshots.everySteps",
    )


def _invalid(field: str, message: str, fix: str) -> Problem:
    return Problem(field=field, reason="InvalidValue", message=message, fix=fix)


RULES = (schedules_are_of_a_cluster, the_best_is_an_anchor, schedules_have_times)

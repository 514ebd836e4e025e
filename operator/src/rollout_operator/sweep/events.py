"""Which events a change of a sweep's status means: each once, by the name of what it is about. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_api.conditions import Reason
from rollout_api.sweeps.points import texts_of
from rollout_api.v1alpha1.sweep import SweepRun
from rollout_operator.run.plan.model import EventSpec
from rollout_operator.sweep.model import SweepSeen

_BECAME = (
    ("Ready", Reason.RUNNING),
    ("Suspended", Reason.SUSPENDED),
    ("Finished", Reason.SUCCEEDED),
)


def plan_notes(
    seen: SweepSeen, entries: Sequence[SweepRun], conditions: Sequence[Mapping[str, Any]]
) -> tuple[EventSpec, ...]:
    """What has happened since the status that is there: to its runs, then to the sweep."""
    return (*_of_runs(seen, entries), *_of_sweep(seen, conditions))


def _of_runs(seen: SweepSeen, entries: Sequence[SweepRun]) -> Iterator[EventSpec]:
    known = {one.name: one for one in seen.status.runs}
    for one in entries:
        before = known.get(one.name)
        if one.forked_from is not None and before is None:
            yield _note(Reason.RUN_FORKED, one, f"begins from run {one.forked_from.name}")
        if one.uid is not None and (before is None or before.uid is None):
            yield _note(Reason.RUN_STARTED, one, f"is made with {_settings(seen, one)}")
        if one.outcome is not None and (before is None or before.outcome is None):
            yield _ending(one)


def _ending(entry: SweepRun) -> EventSpec:
    if entry.outcome == "Stopped":
        return _note(Reason.RUN_STOPPED, entry, f"is suspended: {entry.message}")
    value = "" if entry.value is None else f" with {entry.value:g} at step {entry.step or 0}"
    why = f": {entry.message}" if entry.message else ""
    ended_well = entry.outcome == "Succeeded"
    words = f"has ended, {entry.outcome}{value}{why}"
    return _note(Reason.RUN_ENDED, entry, words, is_warning=not ended_well)


def _settings(seen: SweepSeen, entry: SweepRun) -> str:
    if seen.spec is None or len(entry.values) != len(seen.spec.parameters):
        return "its values"
    return ", ".join(texts_of(entry.values, seen.spec.parameters))


def _note(reason: Reason, entry: SweepRun, words: str, *, is_warning: bool = False) -> EventSpec:
    kind = "Warning" if is_warning else "Normal"
    return EventSpec(type=kind, reason=reason, message=f"run {entry.name} {words}", key=entry.name)


def _of_sweep(seen: SweepSeen, conditions: Sequence[Mapping[str, Any]]) -> Iterator[EventSpec]:
    """Each suspension has one of its own: it is a generation."""
    before = {one.type: (one.status, one.reason) for one in seen.status.conditions}
    now = {one["type"]: one for one in conditions}
    key = f"generation {seen.generation}"
    for kind, reason in _BECAME:
        one = now.get(kind)
        if one is None or (one["status"], one["reason"]) != ("True", reason.value):
            continue
        if before.get(kind) != ("True", reason.value):
            yield EventSpec(type="Normal", reason=reason, message=one["message"], key=key)
    stalled = now.get("Stalled")
    if stalled is not None and before.get("Stalled") != ("True", stalled["reason"]):
        reason = Reason(stalled["reason"])
        yield EventSpec(type="Warning", reason=reason, message=stalled["message"])

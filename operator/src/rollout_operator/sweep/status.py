"""What is said of a sweep: conditions, counts and the best run, from its runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rollout_api.conditions import ConditionType, Reason
from rollout_api.v1alpha1.sweep import BestRun, SweepCounts, SweepRun, SweepStatus
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, stamp, yes
from rollout_operator.controller.times import render_time
from rollout_operator.run.plan.model import Blocked
from rollout_operator.sweep.events import plan_notes
from rollout_operator.sweep.model import SweepActs, SweepSaying, SweepSeen
from rollout_operator.sweep.plan import (
    acts_after,
    find_at_work,
    is_at_work,
    plan_runs,
    saving_for,
)

LOOK_SECONDS, SOON_SECONDS, DRAIN_SECONDS = 15.0, 0.2, 3.0
"""Between two looks at values of runs at work; where more is to be done; while runs are being suspended."""
NAMED_MAX = 3


def plan_status(seen: SweepSeen, now: datetime) -> SweepSaying:
    """The status, and when to look again."""
    if seen.spec is None:
        blocked = Blocked(reason=Reason.INVALID_SPEC, message=seen.fault)
        status = _tell(seen, _stalled(blocked), {}, now)
        return _saying(seen, seen.status.runs, status, None)
    entries = plan_runs(seen)
    acts = acts_after(seen, entries)
    over = all(one.outcome is not None for one in entries)
    found = {
        "total": len(entries),
        "counts": count_runs(entries).model_dump(mode="json", by_alias=True),
        "best": _document(find_best(entries)),
        "completionTime": _ended(seen, now) if over else None,
        "runs": [_document(one) for one in entries],
    }
    draining = _draining(seen, entries) if seen.spec.suspend else None
    judged = judge_sweep(entries, seen.gate or acts.blocked, draining)
    status = _tell(seen, judged, found, now)
    return _saying(seen, entries, status, _again(seen, acts, draining, over=over))


def _saying(
    seen: SweepSeen, entries: Sequence[SweepRun], status: Status | None, again: float | None
) -> SweepSaying:
    notes = () if status is None else plan_notes(seen, entries, status["conditions"])
    return SweepSaying(status=status, requeue_seconds=again, notes=notes)


def _again(seen: SweepSeen, acts: SweepActs, draining: str | None, *, over: bool) -> float | None:
    """A sweep that is over, or suspended with all its runs, hears of what changes."""
    if seen.gate is not None:
        return seen.gate.retry_seconds
    if acts.makes or acts.stops or acts.saves or acts.holds or acts.resumes:
        return SOON_SECONDS
    if draining is not None and not over:
        return DRAIN_SECONDS if draining else None
    return None if over else LOOK_SECONDS


def _draining(seen: SweepSeen, entries: Sequence[SweepRun]) -> str:
    """Which runs of a suspended sweep have pods yet; empty where none has."""
    going = [one.name for one in find_at_work(entries, seen) if not one.rests]
    if not going:
        return ""
    words = f"runs that have pods yet: {_list(going)}"
    saved = saving_for(entries, seen)
    waits = [f"{one} until the snapshot of {saved[one]} is made" for one in going if one in saved]
    return "; ".join([words, *waits[:NAMED_MAX]])


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}"


def judge_sweep(
    entries: Sequence[SweepRun], gate: Blocked | None, draining: str | None = None
) -> Iterator[ConditionUpdate]:
    """The conditions of a sweep with these runs. ``gate``: why not all is done that should be.

    ``draining``: of a sweep that is suspended which runs are not yet, empty where all are; None of another.
    """
    if all(one.outcome is not None for one in entries):
        yield from _finished(entries)
    elif gate is not None and gate.stalled:
        yield from _stalled(gate)
    elif gate is not None:
        yield no(ConditionType.READY, gate.reason, gate.message)
        yield yes(ConditionType.RECONCILING, gate.reason, gate.message)
    elif draining:
        yield no(ConditionType.READY, Reason.DRAINING, draining)
        yield yes(ConditionType.RECONCILING, Reason.DRAINING, draining)
    elif draining is not None:
        words = f"spec.suspend is true; {_words(entries)}"
        yield no(ConditionType.READY, Reason.SUSPENDED, words)
        yield yes(ConditionType.SUSPENDED, Reason.SUSPENDED, words)
    elif all(one.uid is None for one in entries):
        yield no(ConditionType.READY, Reason.PENDING, "no run is made yet")
        yield yes(ConditionType.RECONCILING, Reason.PENDING, "no run is made yet")
    else:
        yield yes(ConditionType.READY, Reason.RUNNING, _words(entries))
    yield from _measured(entries)


def count_runs(entries: Sequence[SweepRun]) -> SweepCounts:
    """Runs by what has become of them."""
    ended = Counter(one.outcome for one in entries if one.outcome is not None)
    return SweepCounts(
        waiting=sum(one.uid is None and one.outcome is None for one in entries),
        running=sum(is_at_work(one) and not one.suspended for one in entries),
        suspended=sum(is_at_work(one) and one.suspended for one in entries),
        succeeded=ended["Succeeded"],
        stopped=ended["Stopped"],
        failed=ended["Failed"],
        deleted=ended["Deleted"],
    )


def find_best(entries: Sequence[SweepRun]) -> BestRun | None:
    """Of runs that went to their end the one with the highest value, else of those that came to the highest rung.

    Of equals the first: the same status names the same run.
    """
    valued = [one for one in entries if one.value is not None and one.outcome != "Failed"]
    ended = [one for one in valued if one.outcome == "Succeeded"]
    best = max(ended or valued, key=_standing, default=None)
    if best is None or best.value is None:
        return None
    return BestRun(name=best.name, value=best.value, step=best.step or 0, values=best.values)


def _standing(entry: SweepRun) -> tuple[int, float]:
    assert entry.value is not None
    rung = max((one.step for one in entry.rungs), default=0)
    return (0 if entry.outcome == "Succeeded" else rung, entry.value)


def _finished(entries: Sequence[SweepRun]) -> Iterator[ConditionUpdate]:
    words = _words(entries)
    if any(one.outcome == "Succeeded" for one in entries):
        yield yes(ConditionType.READY, Reason.SUCCEEDED, words)
        yield yes(ConditionType.COMPLETE, Reason.SUCCEEDED, words)
        yield yes(ConditionType.FINISHED, Reason.SUCCEEDED, words)
        return
    failed = next((one for one in entries if one.outcome == "Failed"), entries[0])
    words = f"no run went to its end: {words}; {failed.name}: {failed.message}"
    yield no(ConditionType.READY, Reason.FAILED, words)
    yield yes(ConditionType.STALLED, Reason.FAILED, words)
    yield yes(ConditionType.FAILED, Reason.FAILED, words)
    yield yes(ConditionType.FINISHED, Reason.FAILED, words)


def _stalled(gate: Blocked) -> Iterator[ConditionUpdate]:
    yield no(ConditionType.READY, gate.reason, gate.message)
    yield yes(ConditionType.STALLED, gate.reason, gate.message)


def _measured(entries: Sequence[SweepRun]) -> Iterator[ConditionUpdate]:
    """A run that cannot be compared is named: it does not lose, and it is not the best."""
    silent = [one.name for one in entries if one.outcome == "Succeeded" and one.value is None]
    if silent:
        words = f"no value of the objective: {_list(silent)}"
        yield no(ConditionType.MEASURED, Reason.NOTHING_MEASURED, words)


def _words(entries: Sequence[SweepRun]) -> str:
    counts = count_runs(entries).model_dump()
    told = [f"{number} {name}" for name, number in counts.items() if number]
    return f"of {len(entries)} runs: {', '.join(told)}"


def _ended(seen: SweepSeen, now: datetime) -> str:
    return seen.status.completion_time or render_time(now)


def _document(model: Any) -> dict[str, Any] | None:
    if model is None:
        return None
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def _tell(
    seen: SweepSeen, aspects: Iterator[ConditionUpdate], found: dict[str, Any], now: datetime
) -> Status | None:
    """The whole status; None where it is as it should be. What cannot be read is said, and nothing of the runs is lost."""
    conditions = stamp(aspects, seen.status.conditions, seen.generation, now)
    before = seen.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    kept = found or {name: before[name] for name in _KEPT if name in before}
    after = {name: one for name, one in kept.items() if one is not None}
    status = {"observedGeneration": seen.generation, "conditions": conditions, **after}
    return None if _same(before, status) else status


_KEPT = ("total", "counts", "best", "completionTime", "runs")


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    read = SweepStatus.model_validate(after).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    before = {**before, "conditions": sorted(before["conditions"], key=lambda one: one["type"])}
    return before == read

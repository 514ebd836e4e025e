"""What becomes of a sweep next: which runs are made, which are stopped, and what is written down. Pure.

What is done follows from the status alone, as it was written: a decision is written first and acted on at the next
look. So an operator that dies between any two writes goes on with what was decided, and nothing is made twice: the
name of a run is that of its place among the combinations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rollout_api.conditions import Reason
from rollout_api.names import sweep_run_name
from rollout_api.sweeps.halving import HalvingRule, find_losers, rung_of
from rollout_api.sweeps.points import plan_points
from rollout_api.v1alpha1.sweep import Rung, SweepRun, SweepSpec
from rollout_operator.run.plan.model import Blocked
from rollout_operator.sweep.model import RunOrder, SweepActs, SweepSeen, SweptRun

MAKES_MAX = 8
"""Runs that are made at one look: each is checked before."""
WORDS_MAX = 500


def plan_acts(seen: SweepSeen) -> SweepActs:
    """What to do; nothing before the runs stand in the status."""
    spec, entries = seen.spec, seen.status.runs
    if spec is None:
        return SweepActs()
    stops = tuple(_stops(entries, seen))
    waiting = [one for one in entries if one.uid is None and one.outcome is None]
    taken = [one for one in waiting if one.name in seen.runs]
    blocked = _foreign(seen, taken)
    free = spec.parallelism - sum(map(is_at_work, entries)) - len(taken)
    wanted = [one for one in waiting if one.name not in seen.runs][: max(0, min(free, MAKES_MAX))]
    makes = tuple(RunOrder(name=one.name, values=one.values) for one in wanted)
    return SweepActs(makes=makes, stops=stops, blocked=blocked)


def is_at_work(entry: SweepRun) -> bool:
    """Whether a run was made and is not over."""
    return entry.uid is not None and entry.outcome is None


def plan_runs(seen: SweepSeen) -> tuple[SweepRun, ...]:
    """The runs as the status should have them: what is seen of each, and who is stopped."""
    assert seen.spec is not None
    entries = seen.status.runs or tuple(_first(seen.name, seen.spec))
    rule = halving_rule(seen.spec)
    followed = [_follow(one, seen.runs.get(one.name), rule) for one in entries]
    return tuple(followed if rule is None else _stop_losers(followed, rule))


def halving_rule(spec: SweepSpec) -> HalvingRule | None:
    """The rule that losers are found by; None where every run goes to its end."""
    wanted = spec.early_stopping.halving if spec.early_stopping is not None else None
    if wanted is None:
        return None
    least = wanted.factor if wanted.min_runs is None else wanted.min_runs
    return HalvingRule(first_step=wanted.first_step, factor=wanted.factor, min_runs=least)


def _first(name: str, spec: SweepSpec) -> Iterator[SweepRun]:
    for index, values in enumerate(plan_points(spec)):
        yield SweepRun(name=sweep_run_name(name, index), values=values)


def _stops(entries: Iterable[SweepRun], seen: SweepSeen) -> Iterator[SweptRun]:
    """Runs that lost and are not suspended yet, or not any more."""
    for one in entries:
        run = seen.runs.get(one.name)
        if one.outcome != "Stopped" or run is None or run.uid != one.uid:
            continue
        if run.outcome is None and not run.deleting and not (run.suspended and run.stopped):
            yield run


def _foreign(seen: SweepSeen, taken: Iterable[SweepRun]) -> Blocked | None:
    """A run of somebody else that has the name of one that is to be made; one that is going is waited for."""
    for one in taken:
        run = seen.runs[one.name]
        if not run.mine:
            message = f"RolloutRun {one.name} exists and is not this RolloutSweep's; delete it, or give the sweep another name"
            return Blocked(reason=Reason.FIELD_CONFLICT, message=message, stalled=not run.deleting)
    return None


def _follow(entry: SweepRun, run: SweptRun | None, rule: HalvingRule | None) -> SweepRun:
    """What is seen of one run; what is over stays as it is."""
    if entry.outcome is not None:
        return entry
    if run is None or not run.mine or (entry.uid is not None and entry.uid != run.uid):
        return entry if entry.uid is None else _deleted(entry)
    step = entry.step if run.step is None else run.step
    value = entry.value if run.value is None else run.value
    found = entry.model_copy(update={"uid": run.uid, "step": step, "value": value})
    if run.stopped and run.suspended and run.outcome is None:
        return found.model_copy(update={"outcome": "Stopped", "message": "it lost"})
    found = found if rule is None else _climb(found, run, rule)
    if run.outcome is not None:
        message = run.message[:WORDS_MAX] if run.outcome == "Failed" else ""
        found = found.model_copy(update={"outcome": run.outcome, "message": message})
    return found


def _deleted(entry: SweepRun) -> SweepRun:
    words = "its RolloutRun was deleted, and not by the sweep"
    return entry.model_copy(update={"outcome": "Deleted", "message": words})


def _climb(entry: SweepRun, run: SweptRun, rule: HalvingRule) -> SweepRun:
    """With the highest rung that it has reached; one that was passed unseen says nothing of the others."""
    rung = None if run.step is None else rung_of(rule, run.step)
    if rung is None or run.value is None or any(one.step >= rung for one in entry.rungs):
        return entry
    return entry.model_copy(update={"rungs": (*entry.rungs, Rung(step=rung, value=run.value))})


def _stop_losers(entries: Sequence[SweepRun], rule: HalvingRule) -> Iterator[SweepRun]:
    seen = {one.name: {rung.step: rung.value for rung in one.rungs} for one in entries}
    at_work = [one.name for one in entries if is_at_work(one)]
    losers = {one.name: one for one in find_losers(rule, seen, at_work)}
    for one in entries:
        if (lost := losers.get(one.name)) is None:
            yield one
            continue
        words = f"at step {lost.step} it was number {lost.place} of {lost.num_runs}, of which {lost.kept} go on"
        yield one.model_copy(update={"outcome": "Stopped", "message": words})


def acts_after(seen: SweepSeen, entries: tuple[SweepRun, ...]) -> SweepActs:
    """What the next look will do once these runs stand in the status."""
    status = seen.status.model_copy(update={"runs": entries})
    return plan_acts(replace(seen, status=status))

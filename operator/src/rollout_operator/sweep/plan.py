"""What becomes of a sweep next: which runs are made, which are stopped, and what is written down. Pure.

What is done follows from the status alone, as it was written: a decision is written first and acted on at the next
look. So an operator that dies between any two writes goes on with what was decided, and nothing is made twice: the
name of a run is that of its place among the combinations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rollout_api.conditions import Reason
from rollout_api.names import sweep_fork_name, sweep_run_name
from rollout_api.sweeps.forking import explore
from rollout_api.sweeps.halving import (
    HalvingRule,
    Loser,
    find_losers,
    find_winner,
    halving_rule,
    rung_of,
)
from rollout_api.sweeps.points import plan_points
from rollout_api.v1alpha1.sweep import ForkedFrom, Rung, SweepRun, SweepSpec
from rollout_operator.run.plan.model import Blocked
from rollout_operator.sweep.model import (
    ForkOrder,
    RunOrder,
    SweepActs,
    SweepSeen,
    SweptRun,
)

MAKES_MAX = 8
"""Runs that are made at one look: each is checked before."""
WORDS_MAX = 500


def plan_acts(seen: SweepSeen) -> SweepActs:
    """What to do; nothing before the runs stand in the status."""
    spec, entries = seen.spec, seen.status.runs
    if spec is None:
        return SweepActs()
    stops, resumes = tuple(_stops(entries, seen)), tuple(_resumes(entries, seen))
    if spec.suspend:
        return SweepActs(stops=stops, holds=tuple(_holds(entries, seen)))
    waiting = [one for one in entries if one.uid is None and one.outcome is None]
    taken = [one for one in waiting if one.name in seen.runs]
    wanted = [one for one in waiting if one.name not in seen.runs]
    forks = [one for one in wanted if one.forked_from is not None]
    free = max(0, spec.parallelism - sum(map(is_at_work, entries)) - len(taken) - len(forks))
    saved = [one for one in forks if one.name in seen.snapshots and seen.snapshots[one.name].ready]
    others = [one for one in wanted if one.forked_from is None][:free]
    return SweepActs(
        saves=tuple(_saves(seen, forks)),
        makes=tuple(_order(one) for one in [*saved, *others][:MAKES_MAX]),
        stops=stops,
        resumes=resumes,
        blocked=_foreign(seen, taken),
    )


def _order(entry: SweepRun) -> RunOrder:
    begins = entry.name if entry.forked_from is not None else ""
    return RunOrder(name=entry.name, values=entry.values, snapshot=begins)


def _saves(seen: SweepSeen, forks: Iterable[SweepRun]) -> Iterator[ForkOrder]:
    """Snapshots that forks wait for and that nobody has made yet."""
    for one in forks:
        assert one.forked_from is not None
        winner = seen.runs.get(one.forked_from.name)
        if one.name not in seen.snapshots and winner is not None and winner.mine:
            yield ForkOrder(name=one.name, run=winner.name, run_uid=winner.uid)


def is_at_work(entry: SweepRun) -> bool:
    """Whether a run was made and is not over."""
    return entry.uid is not None and entry.outcome is None


def plan_runs(seen: SweepSeen) -> tuple[SweepRun, ...]:
    """The runs as the status should have them: what is seen of each, and who is stopped."""
    assert seen.spec is not None
    entries = seen.status.runs or tuple(_first(seen, seen.spec))
    rule = halving_rule(seen.spec)
    followed = [_follow(one, seen.runs.get(one.name), rule) for one in entries]
    followed = [_await_snapshot(one, seen) for one in followed]
    if rule is None:
        return tuple(followed)
    losers = _find_losers(followed, rule)
    told = {one.name: one for one in losers}
    stopped = [_stop(one, told[one.name]) if one.name in told else one for one in followed]
    return (*stopped, *_fork(seen, stopped, losers))


def _first(seen: SweepSeen, spec: SweepSpec) -> Iterator[SweepRun]:
    """Runs of a sweep of which nothing is written, with the forks that there are of one whose status was lost."""
    for index, values in enumerate(plan_points(spec)):
        yield SweepRun(name=sweep_run_name(seen.name, index), values=values)
    for number in range(1, 1 + (spec.forks.max if spec.forks is not None else 0)):
        run = seen.runs.get(name := sweep_fork_name(seen.name, number))
        if run is None or not run.mine or len(run.values) != len(spec.parameters):
            return
        source = seen.snapshots.get(name)
        begun = ForkedFrom(name=name if source is None else source.run)
        yield SweepRun(name=name, values=run.values, forked_from=begun)


def _stops(entries: Iterable[SweepRun], seen: SweepSeen) -> Iterator[SweptRun]:
    """Runs that lost and are not suspended yet, or not any more."""
    for one in entries:
        run = seen.runs.get(one.name)
        if one.outcome != "Stopped" or run is None or run.uid != one.uid:
            continue
        if run.outcome is None and not run.deleting and not (run.suspended and run.stopped):
            yield run


def _holds(entries: Iterable[SweepRun], seen: SweepSeen) -> Iterator[SweptRun]:
    """Runs that are to be suspended because the sweep is; those that somebody has suspended are left to him."""
    for run in find_at_work(entries, seen):
        if not run.suspended and run.name not in saving_for(entries, seen):
            yield run


def _resumes(entries: Iterable[SweepRun], seen: SweepSeen) -> Iterator[SweptRun]:
    """Runs that were suspended with the sweep, and by nobody else."""
    yield from (run for run in find_at_work(entries, seen) if run.held)


def find_at_work(entries: Iterable[SweepRun], seen: SweepSeen) -> Iterator[SweptRun]:
    """Runs that are made, not over, and neither deleted nor lost to the sweep."""
    for one in entries:
        run = seen.runs.get(one.name)
        if run is None or one.outcome is not None or not run.mine or run.deleting:
            continue
        if run.outcome is None and one.uid in {None, run.uid}:
            yield run


def saving_for(entries: Iterable[SweepRun], seen: SweepSeen) -> dict[str, str]:
    """Runs of which a snapshot is being made, by the fork that begins with it: a suspended run saves nothing more."""
    found = {}
    for one in entries:
        snapshot = seen.snapshots.get(one.name)
        if one.forked_from is None or one.uid or one.outcome or snapshot is None:
            continue
        if snapshot.mine and not snapshot.ready and not snapshot.failed:
            found[snapshot.run] = one.name
    return found


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
    news = {"uid": run.uid, "step": step, "value": value, "suspended": run.suspended}
    found = entry.model_copy(update=news)
    if run.stopped and run.suspended and run.outcome is None:
        return _over(found, "Stopped", "it lost")
    found = found if rule is None else _climb(found, run, rule)
    if run.outcome is not None:
        message = run.message[:WORDS_MAX] if run.outcome == "Failed" else ""
        found = _over(found, run.outcome, message)
    return found


def _over(entry: SweepRun, outcome: str, message: str) -> SweepRun:
    return entry.model_copy(update={"outcome": outcome, "message": message, "suspended": False})


def _deleted(entry: SweepRun) -> SweepRun:
    return _over(entry, "Deleted", "its RolloutRun was deleted, and not by the sweep")


def _climb(entry: SweepRun, run: SweptRun, rule: HalvingRule) -> SweepRun:
    """With the highest rung that it has reached; one that was passed unseen says nothing of the others."""
    rung = None if run.step is None else rung_of(rule, run.step)
    past = 0 if entry.forked_from is None else entry.forked_from.step
    known = max((one.step for one in entry.rungs), default=past)
    if rung is None or run.value is None or rung <= known:
        return entry
    return entry.model_copy(update={"rungs": (*entry.rungs, Rung(step=rung, value=run.value))})


def _await_snapshot(entry: SweepRun, seen: SweepSeen) -> SweepRun:
    """A fork whose snapshot never will be, fails: what it was to begin with is not there any more."""
    if entry.forked_from is None or entry.uid is not None or entry.outcome is not None:
        return entry
    found = seen.snapshots.get(entry.name)
    if found is None:
        gone = entry.forked_from.name not in seen.runs
        words = f"run {entry.forked_from.name}, which it was to begin from, is gone" if gone else ""
    elif not found.mine:
        words = f"RolloutSnapshot {entry.name} exists and is not this RolloutSweep's"
    else:
        words = found.failed
    if not words:
        return entry
    return _over(entry, "Failed", words[:WORDS_MAX])


def _find_losers(entries: Sequence[SweepRun], rule: HalvingRule) -> tuple[Loser, ...]:
    working = [one.name for one in entries if is_at_work(one)]
    return find_losers(rule, _rungs_of(entries), working)


def _stop(entry: SweepRun, lost: Loser) -> SweepRun:
    return _over(entry, "Stopped", lost.explain())


def _fork(
    seen: SweepSeen, entries: Sequence[SweepRun], losers: Iterable[Loser]
) -> Iterator[SweepRun]:
    """What takes the places of losers: forks of the best at the rung where they lost."""
    assert seen.spec is not None
    most = 0 if seen.spec.forks is None else seen.spec.forks.max
    number = sum(one.forked_from is not None for one in entries)
    for lost in losers:
        winner = _find_winner(entries, lost.step)
        if winner is None or number >= most:
            continue
        number += 1
        name = sweep_fork_name(seen.name, number)
        values = explore(seen.spec.parameters, winner.values, name)
        begun = ForkedFrom(name=winner.name, step=winner.step or 0)
        yield SweepRun(name=name, values=values, forked_from=begun)


def _find_winner(entries: Sequence[SweepRun], step: int) -> SweepRun | None:
    """Of runs at work the one with the highest value at a rung; of equals the first."""
    working = {one.name: one for one in entries if is_at_work(one)}
    name = find_winner(_rungs_of(entries), working, step)
    return None if name is None else working[name]


def _rungs_of(entries: Sequence[SweepRun]) -> dict[str, dict[int, float]]:
    return {one.name: {rung.step: rung.value for rung in one.rungs} for one in entries}


def acts_after(seen: SweepSeen, entries: tuple[SweepRun, ...]) -> SweepActs:
    """What the next look will do once these runs stand in the status."""
    status = seen.status.model_copy(update={"runs": entries})
    return plan_acts(replace(seen, status=status))

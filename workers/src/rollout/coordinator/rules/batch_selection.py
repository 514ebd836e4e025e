"""Which groups make the next batch, and which tasks may enter: pure decisions over a window of groups.

In order: step k takes the lowest ordinals that nobody took. A task may enter while the step that will
take it lies at most ``staleness_max`` steps past the next one, so what an actor samples now is never
older than the bound when it is consumed, and no token is thrown away for age.
With dynamic sampling a group counts only when every group below it is resolved; groups whose rewards
are all equal are filtered; when a whole window is resolved and the batch is still short, a refill
enters, at most ``waves_max`` windows a step. All of it depends on results, never on time.
Over-provisioning is the exception (Fast only): a step takes the first groups that are done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollout.coordinator.plan import RunPlan
from rollout.coordinator.rules.learning import VARIANCE_MIN
from rollout.ledger.records import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What decisions need of one admitted group.

    ``rewards`` are of its accepted samples, ``oldest_step`` is that of the version of their oldest token.
    """

    state: TaskState
    rewards: tuple[float, ...] = ()
    oldest_step: int | None = None

    @property
    def resolved(self) -> bool:
        """Whether nothing more will come."""
        return self.state not in {"open", "leased"}

    @property
    def informative(self) -> bool:
        """Whether its rewards differ."""
        return bool(self.rewards) and max(self.rewards) - min(self.rewards) > VARIANCE_MIN


Window = Mapping[int, GroupView]


def expire_old(plan: RunPlan, step: int, window: Window) -> Window:
    """The window as the policy of ``step`` may consume it: what has become too old for it is expired.

    The rules of admission keep every group young enough; here that is certain, whatever those allowed.
    """
    oldest = step - plan.train.staleness_max
    return {
        ordinal: replace(group, state="expired", rewards=()) if _is_older(group, oldest) else group
        for ordinal, group in window.items()
    }


def _is_older(group: GroupView, oldest: int) -> bool:
    return group.state == "done" and group.oldest_step is not None and group.oldest_step < oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A complete batch: the ordinals it keeps, those it leaves and why, and where the next one starts."""

    kept: tuple[int, ...]
    excluded: tuple[int, ...]
    filtered: tuple[int, ...]
    expired: tuple[int, ...]
    surplus: tuple[int, ...]
    next_ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """Who is waited for: the lowest unresolved ordinal; ``missing`` counts all of them."""

    ordinal: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """No batch will come: the data ended."""


Decision = Ready | NotReady | Exhausted


def window_end(plan: RunPlan, cursor: int, window: Window) -> int:
    """First ordinal that may not enter yet, given that every one below ``cursor`` is taken."""
    end = _clip(plan, cursor + (plan.train.staleness_max + 1) * plan.train.groups_per_step)
    if plan.train.waves_max is None:
        return end
    return _refilled(plan, cursor, end, window)


def _clip(plan: RunPlan, end: int) -> int:
    return end if plan.train.tasks_total is None else min(end, plan.train.tasks_total)


def _refilled(plan: RunPlan, cursor: int, end: int, window: Window) -> int:
    """Replay the refills that the results so far call for."""
    assert plan.train.waves_max is not None
    for _ in range(plan.train.waves_max - 1):
        groups = [window.get(ordinal) for ordinal in range(cursor, end)]
        if not all(group is not None and group.resolved for group in groups):
            return end
        found = sum(group is not None and group.informative for group in groups)
        if found >= plan.train.tasks_per_step:
            return end
        lacking = plan.train.tasks_per_step - found
        # As many as the share of useful groups so far asks for, a step's worth at most.
        wanted = min(plan.train.tasks_per_step, -(-lacking * len(groups) // max(1, found)))
        end = _clip(plan, end + wanted)
    return end


def batch_end(plan: RunPlan, cursor: int, window: Window) -> int:
    """First ordinal behind those that the next step may take."""
    end = window_end(plan, cursor, window)
    if plan.train.waves_max is None:
        return min(end, cursor + plan.train.groups_per_step)
    return end


def decide_batch(plan: RunPlan, cursor: int, window: Window) -> Decision:
    """The batch of the next step, or why there is none yet."""
    end = batch_end(plan, cursor, window)
    if end <= cursor:
        return Exhausted()
    if plan.train.extra_groups:
        return _decide_first(plan, cursor, end, window)
    return _decide(plan, cursor, end, window)


def _decide_first(plan: RunPlan, cursor: int, end: int, window: Window) -> Decision:
    """With groups asked for besides: a batch as soon as enough are done; the step closes all of them."""
    states: dict[int, TaskState] = {
        ordinal: "open" if (group := window.get(ordinal)) is None else group.state
        for ordinal in range(cursor, end)
    }
    kept = [ordinal for ordinal, state in states.items() if state == "done"][
        : plan.train.tasks_per_step
    ]
    unresolved = [n for n, state in states.items() if state in {"open", "leased"}]
    if len(kept) < plan.train.tasks_per_step and unresolved:
        return NotReady(ordinal=unresolved[0], missing=len(unresolved))
    gone = {
        kind: tuple(ordinal for ordinal, state in states.items() if state == kind)
        for kind in ("excluded", "expired")
    }
    rest = states.keys() - set(kept) - set(gone["excluded"]) - set(gone["expired"])
    return Ready(
        kept=tuple(kept),
        excluded=gone["excluded"],
        expired=gone["expired"],
        filtered=(),
        surplus=tuple(sorted(rest)),
        next_ordinal=end,
    )


def _decide(plan: RunPlan, cursor: int, end: int, window: Window) -> Decision:
    kept: list[int] = []
    dropped: dict[str, list[int]] = {"excluded": [], "filtered": [], "expired": [], "surplus": []}
    stop = end
    for ordinal in range(cursor, end):
        group = window.get(ordinal)
        if group is None or not group.resolved:
            return NotReady(ordinal=ordinal, missing=_missing(ordinal, end, window))
        why = _why_not(plan, group)
        if why is None:
            kept.append(ordinal)
        else:
            dropped[why].append(ordinal)
        if len(kept) == plan.train.tasks_per_step:
            stop = ordinal + 1
            break
    if plan.train.waves_max is not None and plan.train.staleness_max == 0:
        # Synchronous: what is left of the window was sampled from a policy that is about to be old.
        dropped["surplus"] = list(range(stop, end))
        stop = end
    if not kept and dropped["filtered"]:
        # A batch with nothing to learn from is still a batch: the run goes on and says so.
        kept, dropped["filtered"] = dropped["filtered"][: plan.train.tasks_per_step], []
        dropped["surplus"] = sorted(set(range(cursor, stop)) - set(kept) - _all(dropped))
    return Ready(
        kept=tuple(kept),
        next_ordinal=stop,
        **{kind: tuple(ordinals) for kind, ordinals in dropped.items()},
    )


def _all(dropped: Mapping[str, list[int]]) -> set[int]:
    return {*dropped["excluded"], *dropped["expired"]}


def _missing(first: int, end: int, window: Window) -> int:
    rest = (window.get(ordinal) for ordinal in range(first, end))
    return sum(group is None or not group.resolved for group in rest)


def _why_not(plan: RunPlan, group: GroupView) -> str | None:
    if group.state != "done":
        return "expired" if group.state == "expired" else "excluded"
    if plan.train.waves_max is not None and not group.informative:
        return "filtered"
    return None


def is_exhausted(plan: RunPlan, next_ordinal: int) -> bool:
    """Whether the data has no further batch after ``next_ordinal``."""
    if plan.train.num_tasks is None:
        return False
    left = plan.train.num_tasks - next_ordinal
    return left <= 0 if plan.train.short_tail else left < plan.train.groups_per_step


def is_finished(plan: RunPlan, step: int, next_ordinal: int) -> bool:
    """Whether ``step`` was the run's last."""
    last = plan.train.steps_max
    return (last is not None and step >= last) or is_exhausted(plan, next_ordinal)

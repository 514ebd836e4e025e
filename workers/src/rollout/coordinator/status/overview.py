"""The run in one look, for ``GET /v1/status`` and the metrics page. Reads the picture, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from rollout.coordinator.context import RunContext
from rollout.coordinator.duties.references import describe_best, find_best
from rollout.coordinator.liveness import is_alive
from rollout.coordinator.rules.autoscaling import actors_for_tasks
from rollout.coordinator.rules.divergence import judge_divergence
from rollout.coordinator.rules.drift import judge_drift, judge_retokenised
from rollout.coordinator.rules.learning import Learning, judge_learning
from rollout.coordinator.state import LEARNER, EvaluationRun, Worker
from rollout.coordinator.waits import Culprit, find_hold, find_wait, idle_reason
from rollout.protocol.rendezvous import describe
from rollout.protocol.status import (
    WHOLE_RUN,
    Condition,
    EvaluationStatus,
    GroupStatus,
    InferStatus,
    Status,
    Waiting,
    WorkerStatus,
)
from rollout_api.conditions import Reason

WAITS_SHARE = 0.25
"""A side that waits for more than this share of a step, and longer than the other, is held up."""


def build_status(run: RunContext) -> Status:
    """Everything a progress display needs."""
    state, last = run.state, run.state.recent[-1] if run.state.recent else {}
    best = find_best(run)
    known = best is not None and (best.result.lineage, best.result.step) in state.versions
    return Status(
        name=run.plan.name,
        uid=run.plan.uid,
        phase=phase(run),
        lineage=state.lineage,
        step=state.step,
        steps_max=run.plan.train.steps_total,
        policy_version=None if state.version is None else state.version.step,
        chain=state.chain,
        position=run.ledger.position,
        uptime_seconds=run.clock() - run.started_at,
        seconds_per_step=state.step_seconds,
        tokens_per_second=read_metric(last, "tokens_per_second"),
        reward=read_metric(last, "reward"),
        loss=read_metric(last, "loss"),
        metrics=last,
        phase_seconds=state.phase_seconds,
        waiting=_waiting(run),
        bottleneck=bottleneck(run),
        dispositions=dispositions(run),
        workers=_workers(run),
        evaluations=_evaluations(run),
        conditions=conditions(run),
        actors_wanted=actors_wanted(run),
        best=describe_best(run, best) if best is not None and known else None,
        anchor=state.anchors[-1].name if state.anchors else None,
        settings_generation=run.settings_generation,
        group=describe_group(run),
        infer=describe_batch(run),
        outcome=state.outcome,
    )


def describe_batch(run: RunContext) -> InferStatus | None:
    """How far an inference run is; None of a run that trains."""
    plan = run.plan.infer
    if plan is None:
        return None
    (rows,) = run.state.evaluations.values() or (None,)
    if rows is None:
        return InferStatus(
            num_rows=plan.num_rows, num_done=0, num_failed=plan.num_refused, num_tokens=0
        )
    failed = plan.num_refused + rows.num_excluded
    return InferStatus(
        num_rows=plan.num_rows,
        num_done=rows.num_answered,
        num_failed=failed,
        num_tokens=rows.num_tokens,
        seconds_left=_seconds_left(run, plan.num_rows - failed - rows.num_answered, rows),
    )


def count_rows(run: RunContext) -> InferStatus | None:
    """The same of every run without a learner: prompts of all evaluations where it answers no rows."""
    if run.plan.trains or run.plan.infer is not None:
        return describe_batch(run)
    items = list(run.state.evaluations.values())
    total = sum(one.num_prompts for one in run.plan.evaluations)
    done, failed = (sum(one.num_answered for one in items), sum(one.num_excluded for one in items))
    return InferStatus(
        num_rows=total,
        num_done=done,
        num_failed=failed,
        num_tokens=sum(one.num_tokens for one in items),
        seconds_left=_seconds_left(run, total - done - failed, *items),
    )


def _seconds_left(run: RunContext, num_left: int, *rows: EvaluationRun) -> float | None:
    """By the pace of this coordinator's life; what an earlier one did says nothing of now."""
    done = sum(one.num_answered - one.num_before for one in rows)
    if not done or num_left <= 0 or run.state.outcome is not None:
        return None
    return num_left * (run.clock() - run.started_at) / done


def describe_group(run: RunContext) -> GroupStatus | None:
    """The learner's pods; None where no pod has ever checked in."""
    if not run.group.incarnation:
        return None
    return describe(run.group, run.clock(), silent_seconds=run.plan.lease_seconds)


def phase(run: RunContext) -> str:
    """Starting, Running, Evaluating, Stopping, or how it ended."""
    state = run.state
    if state.outcome is not None:
        return state.outcome.kind
    if state.stopping is not None:
        return "Stopping"
    if state.version is None:
        return "Starting"
    if run.is_last_step_done():
        return "Evaluating" if state.pending_evaluations() else "Finishing"
    return "Running"


def read_metric(metrics: Mapping[str, Any], name: str) -> float | None:
    """A step's metric; None where it has none of this name, or one that is no number."""
    value = metrics.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _waiting(run: RunContext) -> tuple[Waiting, ...]:
    found: list[Waiting] = []
    waits, now = run.waits, run.clock()
    if waits.learner_since is not None and run.state.outcome is None:
        seconds = now - waits.learner_since
        found.append(_wait_for("learner", waits.learner_for, find_wait(run), seconds))
    if run.full is not None and run.is_full():
        found.append(
            Waiting(
                who=WHOLE_RUN,
                what="room for the ledger",
                culprit=run.full.message,
                seconds=now - run.full.since,
            )
        )
    if run.unwritten is not None and run.state.outcome is None:
        found.append(
            Waiting(
                who=WHOLE_RUN,
                what="the place of results",
                culprit=run.unwritten.message,
                seconds=now - run.unwritten.since,
            )
        )
    if (group := describe_group(run)) is not None and group.stage == "Joining":
        since = run.group.since
        found.append(
            Waiting(
                who="the learner's group",
                what="all ranks",
                culprit=group.message,
                seconds=now - since,
            )
        )
    hold = find_hold(run)
    if hold is not None:
        since = run.state.step_ended_at or run.started_at
        found.append(_wait_for(WHOLE_RUN, *hold, now - since))
    # Whatever an idle actor waits for, the learner is the one to bring it.
    learner = Culprit(text=idle_reason(run), workers=(LEARNER,))
    found += [_wait_for(who, "a task", learner, now - since) for who, since in waits.idle.items()]
    return tuple(found)


def _wait_for(who: str, what: str, culprit: Culprit, seconds: float) -> Waiting:
    return Waiting(
        who=who, what=what, culprit=culprit.text, seconds=seconds, workers=culprit.workers
    )


def bottleneck(run: RunContext) -> Literal["Actors", "Learner", "Balanced"]:
    """Who holds the run up: Actors, Learner, or neither (Balanced)."""
    learner_waits, actors_wait = run.waits.shares
    if max(learner_waits, actors_wait) < WAITS_SHARE:
        return "Balanced"
    return "Actors" if learner_waits > actors_wait else "Learner"


def actors_wanted(run: RunContext) -> int | None:
    """How many actors there should be; None where nobody asked for their number to follow anything."""
    bounds = run.plan.actors
    if bounds is None:
        return None
    if bounds.tasks_each and run.state.version is not None:
        pending = run.state.pending_evaluations()
        left = sum(one.num_tasks - one.num_resolved for one in pending)
        return actors_for_tasks(bounds, left)
    return bounds.start if run.pace is None else run.pace.wanted


def dispositions(run: RunContext) -> dict[str, int]:
    """Samples by how they ended; ``pending`` have not."""
    pending = sum(group.task.num_samples for group in run.state.groups.values())
    return {**run.state.dispositions, "pending": pending}


def _workers(run: RunContext) -> tuple[WorkerStatus, ...]:
    """Leases are counted once for all: there may be a thousand workers and ten thousand leases."""
    held = Counter(lease.worker for lease in run.state.leases.values())
    return tuple(_worker(run, one, held[one.name]) for one in run.state.workers.values())


def _worker(run: RunContext, worker: Worker, num_tasks: int) -> WorkerStatus:
    now = run.clock()
    return WorkerStatus(
        worker=worker.name,
        role=worker.role,
        incarnation=worker.incarnation,
        alive=worker.outcome is None and is_alive(run, worker.name, now),
        heartbeat_age_seconds=now - worker.seen_at,
        state=worker.trouble or worker.state,
        loaded_step=None if worker.loaded is None else worker.loaded.step,
        num_tasks=num_tasks,
        restarts=worker.incarnation - 1,
        outcome=worker.outcome,
        num_wrong=worker.num_wrong,
        num_rebuilt=worker.num_rebuilt,
        plugins=worker.plugins,
    )


def _evaluations(run: RunContext) -> tuple[EvaluationStatus, ...]:
    return tuple(
        EvaluationStatus(
            name=name,
            split=split,
            lineage=lineage,
            step=step,
            num_done=item.num_tasks if item.summary is not None else item.num_resolved,
            num_total=item.num_tasks,
            metrics=item.summary or {},
        )
        for (name, split, lineage, step), item in run.state.evaluations.items()
        if "dropped" not in (item.summary or {})
    )


def _judge_learning(run: RunContext) -> Learning:
    if run.plan.train.learns_from_reward:
        return judge_learning(run.state.signals)
    return Learning(signal=True, message="a teacher scores every token")


def conditions(run: RunContext) -> tuple[Condition, ...]:
    """Learning, LogprobsAgree, TokensRoundTrip, RewardHolds, WeightsVerified, Tracking: what to know at a glance."""
    found = _of_training(run) if run.plan.trains else []
    trouble = [f"{w.name}: {w.trouble}" for w in run.state.workers.values() if w.trouble]
    found.append(
        Condition(
            type="WeightsVerified",
            status=not trouble,
            reason=Reason.WEIGHTS_MISMATCH if trouble else Reason.WEIGHTS_VERIFIED,
            message="; ".join(trouble),
        )
    )
    troubles = run.tracker_troubles()
    if troubles:
        found.append(
            Condition(
                type="Tracking",
                status=False,
                reason=Reason.TRACKER_FAILED,
                message="; ".join(troubles),
            )
        )
    return tuple(found)


def _of_training(run: RunContext) -> list[Condition]:
    learning = _judge_learning(run)
    found = [
        Condition(
            type="Learning",
            status=learning.signal,
            reason=Reason.LEARNING if learning.signal else Reason.NO_LEARNING_SIGNAL,
            message=learning.message,
        )
    ]
    drift = judge_drift(run.state.recent, run.plan.limits.drift)
    found.append(
        Condition(
            type="LogprobsAgree",
            status=drift.level == "none",
            reason=Reason.LOGPROBS_AGREE if drift.level == "none" else Reason.LOGPROBS_DRIFT,
            message=drift.message,
        )
    )
    text = judge_retokenised(run.state.recent, run.plan.limits.retokenised)
    if text.level != "none":
        found.append(
            Condition(
                type="TokensRoundTrip",
                status=False,
                reason=Reason.TOKENIZATION_MISMATCH,
                message=text.message,
            )
        )
    parted = judge_divergence(run.plan.evaluations, run.state.results(), stops=False)
    if parted.level != "none":
        found.append(
            Condition(
                type="RewardHolds",
                status=False,
                reason=Reason.REWARD_DIVERGENCE,
                message=parted.message,
            )
        )
    return found

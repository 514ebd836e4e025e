"""Because of whom the learner, and the run as a whole, waits: in one line, with the workers that it names."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.coordinator.calls.admission import view_window
from rollout.coordinator.context import RunContext
from rollout.coordinator.liveness import working_actors
from rollout.coordinator.rules.batch_selection import Decision, NotReady, decide_batch
from rollout.ledger.records import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Because of whom somebody waits: a text for people, and the workers that it names."""

    text: str
    workers: tuple[str, ...] = ()


def find_wait(run: RunContext) -> Culprit:
    """Whom the learner waits for, in one line: which task, which worker, which try."""
    state = run.state
    if state.version is None:
        return Culprit(text="version 0 is not published")
    if run.damaged == state.version:
        text = f"the learner has not stored version {state.step} again, which was damaged"
        return Culprit(text=text, workers=_learners(run))
    decision: Decision = decide_batch(run.plan, state.cursor.next_ordinal, view_window(run))
    if not isinstance(decision, NotReady):
        return _find_silence(run) or Culprit(text="nobody: the batch is complete")
    group = state.groups.get(decision.ordinal)
    if group is None:
        return Culprit(text=f"task t/{decision.ordinal} is not admitted yet")
    more = f", {decision.missing} tasks missing" if decision.missing > 1 else ""
    return _find_holder(run, group.task.task_id, group.lease, more)


def _learners(run: RunContext) -> tuple[str, ...]:
    return tuple(w.name for w in run.state.workers.values() if w.role == "learner")


def _find_silence(run: RunContext) -> Culprit | None:
    """Of a learner that was not heard for a while; None for one that was, or is not needed any more."""
    learners = [w for w in run.state.workers.values() if w.role == "learner"]
    has_ended = any(worker.outcome is not None for worker in learners)
    silent = run.clock() - max((w.seen_at for w in learners), default=run.started_at)
    if silent <= run.plan.heartbeat_seconds * 2 or (has_ended and run.learner_until is None):
        return None
    if has_ended:
        text = f"the learner was told to go; there is no other one for {silent:.0f} s"
        return Culprit(text=text)
    return Culprit(text=f"the learner is silent for {silent:.0f} s", workers=_learners(run))


def find_hold(run: RunContext) -> tuple[str, Culprit] | None:
    """What the run as a whole waits for, and whom; None while its workers go on, or say so themselves."""
    if run.state.outcome is not None:
        return None
    silence = _find_silence(run)
    if not run.is_last_step_done():
        return (f"step {run.state.step + 1}", silence) if silence else None
    pending = run.state.pending_evaluations()
    if not pending and not run.plan.trains:
        return None
    if not pending:
        missing = Culprit(text="the learner has not saved it", workers=_learners(run))
        return "the learner's last anchor", silence or missing
    first = pending[0]
    name, split, _, step = first.key
    prompts = (n for n in range(first.num_tasks) if n not in first.rewards.keys() | first.excluded)
    position = next(prompts, 0)
    holder = _find_holder(run, f"prompt {position}", first.leased.get(position))
    return f"evaluation {name} ({split}) of step {step}", holder


def _find_holder(run: RunContext, what: str, lease: Lease | None, more: str = "") -> Culprit:
    now = run.clock()
    if lease is None:
        alive = working_actors(run)
        if not alive:
            return Culprit(text=f"{what} is not started: no actor is alive{more}")
        busy = ", ".join(f"{worker.name} {worker.state}".strip() for worker in alive[:3])
        names = tuple(worker.name for worker in alive[:3])
        return Culprit(text=f"{what} is not started: {busy}{more}", workers=names)
    seen = run.state.workers.get(lease.worker)
    silent = now - (run.started_at if seen is None else seen.seen_at)
    doing = "" if seen is None or not seen.state else f" ({seen.state})"
    quiet = f", silent for {silent:.0f} s" if silent > run.plan.heartbeat_seconds * 2 else ""
    text = f"{what} is with {lease.worker}{doing}, try {lease.attempt}{quiet}{more}"
    return Culprit(text=text, workers=(lease.worker,))


def idle_reason(run: RunContext) -> str:
    """Why there is no work for an actor just now."""
    if run.state.version is None:
        return "waiting for the learner to publish the first version"
    if run.unwritten is not None:
        return "every row has ended: waiting for the place of results"
    if run.damaged == run.state.version:
        return f"waiting for the learner to store version {run.state.step} again: it was damaged"
    if run.plan.infer is not None:
        return "every row is taken"
    return f"every task of step {run.state.step + 1} is taken: waiting for the learner"

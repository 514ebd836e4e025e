"""What keeps a live run attempt from going on. Pure."""

from __future__ import annotations

from rollout_api.conditions import Reason
from rollout_operator.run.plan.model import REASONS, Blocked, Observed
from rollout_operator.run.plan.phases import Phase

IMAGE_TROUBLE = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})


def find_trouble(observed: Observed, phase: Phase, attempt: int, lost: str) -> Blocked | None:
    """What keeps a live attempt from going on, the gravest first."""
    if observed.blocked is not None:
        return observed.blocked
    if lost:
        return Blocked(reason=Reason.NODE_LOST, message=lost)
    if phase.holding:
        message = "the learner was not complete in time; its devices were given back"
        return Blocked(reason=Reason.GANG_INCOMPLETE, message=message, stalled=False)
    progress = observed.status.progress
    if progress is not None and progress.attempt == attempt and progress.outcome is not None:
        reason = REASONS.get(progress.outcome.reason, Reason.FAILED)
        return Blocked(reason=reason, message=progress.outcome.message or "the run has stopped")
    return _pod_trouble(observed, attempt) or _stuck(observed, attempt)


def _stuck(observed: Observed, attempt: int) -> Blocked | None:
    progress = observed.status.progress
    if progress is None or progress.attempt != attempt or progress.stuck is None:
        return None
    return Blocked(reason=Reason.NO_PROGRESS, message=progress.stuck.message, stalled=False)


def _pod_trouble(observed: Observed, attempt: int) -> Blocked | None:
    for pod in observed.pods:
        if pod.attempt != attempt or pod.deleting:
            continue
        if pod.waiting in IMAGE_TROUBLE:
            message = f"pod {pod.name}: {pod.waiting_message or pod.waiting}"
            return Blocked(reason=Reason.IMAGE_PULL_FAILED, message=message)
        if pod.unschedulable:
            message = f"pod {pod.name}: {pod.unschedulable}"
            return Blocked(reason=Reason.UNSCHEDULABLE, message=message, stalled=False)
    return None

"""Whether a run is over: by the coordinator's word, a deadline, or workers that fail too often. Pure.

The coordinator decides what the work was worth; exit codes are hints that only matter when nobody
is left who could say.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rollout_api.conditions import Reason
from rollout_api.v1alpha1.run_status import Outcome
from rollout_operator.cache.children import Ended, Pod
from rollout_operator.controller.times import parse_time
from rollout_operator.run.plan.learner_group import Group, describe_end
from rollout_operator.run.plan.model import REASONS, Ending, Observed

EXIT_INPUT = 2
OUT_OF_MEMORY = "OOMKilled"
"""What a kubelet says of a container that the kernel killed for memory."""
WORDS = {
    "SpecError": Reason.INVALID_SPEC,
    "DataError": Reason.BAD_RECORD,
    "StoreError": Reason.STORAGE_UNREACHABLE,
    "ObjectMissing": Reason.STORAGE_UNREACHABLE,
    "PlaceUnreachable": Reason.STORAGE_UNREACHABLE,
    "LedgerError": Reason.LEDGER_UNREACHABLE,
    "LedgerBroken": Reason.LEDGER_CORRUPT,
    "RewardError": Reason.REWARD_ERROR,
}
"""Words of the data plane's errors, as reasons of the API; the others are reasons themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationRule:
    """What a container's end means; the first rule that fits counts. None fits everything."""

    exit_code: int | None = None
    reason: str | None = None
    fails_at_once: bool = False
    means: Reason = Reason.RETRIES_EXHAUSTED


RULES = (
    TerminationRule(exit_code=EXIT_INPUT, fails_at_once=True, means=Reason.INVALID_SPEC),
    TerminationRule(reason=OUT_OF_MEMORY, means=Reason.OUT_OF_MEMORY),
    TerminationRule(),
)
"""Bad input stays bad; everything else is started again, ``limits.retries`` times. ``means``: why the run
has failed then."""


def rule_for(exit_code: int, reason: str) -> TerminationRule:
    """The first rule that fits."""
    return next(
        rule
        for rule in RULES
        if rule.exit_code in (None, exit_code) and rule.reason in (None, reason)
    )


def find_ending(
    observed: Observed, group: Group | None, attempt: int, now: datetime
) -> Ending | None:
    """How the run ends now; None while it goes on."""
    progress = observed.status.progress
    outcome = (
        progress.outcome if progress is not None and progress.attempt in {0, attempt} else None
    )
    if outcome is not None and outcome.kind != "Stopped":
        return _from_outcome(outcome)
    return _by_deadline(observed, now) or _by_group(observed, group) or _by_pods(observed, attempt)


def _from_outcome(outcome: Outcome) -> Ending:
    if outcome.kind == "Succeeded":
        return Ending(
            succeeded=True, reason=Reason.SUCCEEDED, message=outcome.message or "the work is done"
        )
    reason = reason_of(outcome.reason)
    return Ending(succeeded=False, reason=reason, message=outcome.message or outcome.reason)


def reason_of(word: str) -> Reason:
    """A reason of the closed list for a word of the data plane."""
    return _known(word) or Reason.FAILED


def _known(word: str) -> Reason | None:
    return WORDS.get(word) or REASONS.get(word)


def _at_once(ended: Ended, rule: TerminationRule, message: str) -> Ending:
    """The container's last word is ``Kind: message`` where it could leave one; the kind says more than the code."""
    return _failed(_known(ended.message.strip().partition(":")[0]) or rule.means, message)


def deadlines(observed: Observed) -> list[tuple[datetime, Ending]]:
    """When the run ends by itself, and how."""
    spec, status = observed.spec, observed.status
    if spec is None or status.start_time is None:
        return []
    started = parse_time(status.start_time)
    found: list[tuple[datetime, Ending]] = []
    if (active := active_seconds(observed)) is not None:
        due = started + timedelta(seconds=active - status.active_seconds)
        message = f"the run went on longer than limits.activeSeconds ({active})"
        found.append((due, _failed(Reason.ACTIVE_SECONDS_EXCEEDED, message)))
    if not has_begun(observed):
        limit = spec.limits.pre_running_seconds
        first = "first row" if spec.train is None else "first step"
        what = first if spec.serve is None else "answer of the service"
        message = f"no {what} within limits.preRunningSeconds ({limit})"
        culprit = describe_waiting(observed)
        ending = _failed(Reason.PRE_RUNNING_SECONDS_EXCEEDED, message + culprit)
        found.append((started + timedelta(seconds=limit), ending))
    return found


def active_seconds(observed: Observed) -> int | None:
    """The run's own bound, or the platform's; the lower of both."""
    ceilings = observed.runtime.ceilings
    bounds = (
        observed.spec.limits.active_seconds if observed.spec else None,
        ceilings.active_seconds if ceilings else None,
    )
    return min((bound for bound in bounds if bound is not None), default=None)


def has_begun(observed: Observed) -> bool:
    """Whether a first step, sample or row has been recorded, or a service has answered."""
    progress = observed.status.progress
    if progress is None:
        return False
    if progress.serve is not None:
        return True
    done, rows = progress.dispositions, progress.rows
    answered = rows is not None and rows.done > 0
    return answered or progress.step > 0 or (done is not None and any(done.model_dump().values()))


def describe_waiting(observed: Observed) -> str:
    """The first pod that is not up, and why."""
    for pod in observed.pods:
        why = pod.waiting or pod.unschedulable
        if why:
            return f"; pod {pod.name}: {why}"
    return ""


def _by_deadline(observed: Observed, now: datetime) -> Ending | None:
    return next((ending for due, ending in deadlines(observed) if now >= due), None)


def _by_group(observed: Observed, group: Group | None) -> Ending | None:
    if group is None or group.restart_cause is None or group.restart_cause.disruption:
        return None
    assert observed.spec is not None
    ended = group.restart_cause.ended
    rule = rule_for(ended.exit_code, ended.reason) if ended is not None else TerminationRule()
    if ended is not None and rule.fails_at_once:
        return _at_once(ended, rule, group.restart_cause.message)
    if group.num_failures < observed.spec.limits.retries:
        return None
    return _exhausted(group.num_failures, group.restart_cause.message, rule)


def _by_pods(observed: Observed, attempt: int) -> Ending | None:
    mine = (pod for pod in observed.pods if pod.attempt == attempt and pod.role != "learner")
    endings = (_by_pod(observed, pod) for pod in mine if pod.ended is not None)
    return next((ending for ending in endings if ending is not None), None)


def _by_pod(observed: Observed, pod: Pod) -> Ending | None:
    ended = pod.ended
    assert ended is not None and observed.spec is not None
    if pod.disrupted or pod.deleting or ended.exit_code == 0:
        return None
    rule = rule_for(ended.exit_code, ended.reason)
    if rule.fails_at_once:
        return _at_once(ended, rule, describe_end(pod))
    if pod.restarts > observed.spec.limits.retries:
        return _exhausted(pod.restarts, describe_end(pod), rule)
    return None


def _exhausted(count: int, last: str, rule: TerminationRule) -> Ending:
    return _failed(rule.means, f"{count} restarts did not help; the last: {last}")


def _failed(reason: Reason, message: str) -> Ending:
    return Ending(succeeded=False, reason=reason, message=message)

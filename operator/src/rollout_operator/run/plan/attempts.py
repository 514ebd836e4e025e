"""Which run attempt is current, and where its record is. Pure."""

from __future__ import annotations

from rollout_api import names
from rollout_api.names import Role
from rollout_operator.cache.children import Child
from rollout_operator.run.plan.model import ROLES, Observed
from rollout_operator.run.plan.settled import differ


def records(observed: Observed) -> list[Child]:
    """Records of run attempts that exist, the newest first; of one attempt that which its status names, then by name.

    A replica that was not told of a record may have made another one of its attempt.
    """
    told = observed.status.configuration
    found = [
        child
        for (kind, _), child in observed.children.items()
        if kind == "ConfigMap" and child.expected and not child.deleting
    ]
    return sorted(found, key=lambda child: (-child.attempt, child.name != told, child.name))


def current_attempt(observed: Observed) -> int:
    """The attempt that lives, or shall start: a suspended run's next one is a new one.

    Counted from the status and the children, whichever has seen more, so that neither a lost status
    write nor a late watch repeats a number, nor an attempt that is not read is followed by the one before
    it. One that was overtaken by an edit is never told of.
    """
    seen, done = _newest_seen(observed), observed.status.attempt
    if find_overtaken(observed):
        return max(seen, done) + 1
    if seen > done:
        return seen
    return done + 1 if done == 0 or is_suspended(observed) else done


def _newest_seen(observed: Observed) -> int:
    found = records(observed)
    return max(found[0].attempt if found else 0, _newest_unread(observed))


def find_overtaken(observed: Observed) -> int:
    """The newest attempt, where the run does not go on with it, though it is not to be suspended; 0 where it does.

    One whose record cannot be put back as it was is over: its pods are never made from another one. Settings that pods
    are made from change with a suspension, which may be taken back before anybody here saw it, or once the coordinator
    was told to stop. Any setting may have changed in an attempt that the status does not tell of: it is rendered anew,
    nobody works yet.
    """
    if observed.suspend:
        return 0
    if observed.record_lost:
        return observed.status.attempt
    newest = next(iter(records(observed)), None)
    return newest.attempt if newest is not None and _is_overtaken(observed, newest) else 0


def _is_overtaken(observed: Observed, newest: Child) -> bool:
    if newest.attempt > observed.status.attempt:
        return observed.generation > newest.generation
    return differ(newest.settled, observed.settled) or _has_stopped(observed, newest.attempt)


def misses_record(observed: Observed) -> bool:
    """Whether the attempt that the status tells of is to go on, and its record is not there."""
    told = observed.status
    waits = observed.suspend or observed.spec is None or observed.gate is not None
    if waits or told.configuration is None or is_finished(observed) or lives_unread(observed):
        return False
    attempt = current_attempt(observed)
    return attempt == told.attempt and find_record(observed, attempt) is None


def _has_stopped(observed: Observed, attempt: int) -> bool:
    """Whether the coordinator of an attempt says that it saved everything and works no more: only a new one goes on."""
    progress = observed.status.progress
    if progress is None or progress.attempt != attempt or progress.outcome is None:
        return False
    return progress.outcome.kind == "Stopped"


def has_pods(observed: Observed) -> bool:
    """Whether there are pods, or shall be."""
    return bool(observed.pods) or any(replicas_of(observed, role) for role in ROLES)


def find_record(observed: Observed, attempt: int) -> Child | None:
    """The record of an attempt."""
    return next((child for child in records(observed) if child.attempt == attempt), None)


def lives_unread(observed: Observed) -> bool:
    """Whether there may be pods of an attempt, and no record of it that may be read.

    Before an attempt was ever told of, a record that does not verify is a stranger's, and means nothing;
    one that verifies, in another format, is ours. A suspension that was told of ended the attempts before it.
    """
    newest = _newest_unread(observed)
    if is_suspended(observed) and newest <= observed.status.attempt:
        return False
    overtaken = find_overtaken(observed)
    if overtaken and newest <= overtaken:
        return False
    told = bool(observed.unverified) and observed.status.attempt > 0
    return bool(told or newest) and find_record(observed, current_attempt(observed)) is None


def _newest_unread(observed: Observed) -> int:
    return max((one.attempt for one in observed.unread), default=0)


def is_suspended(observed: Observed) -> bool:
    """Whether the status says that the pods are gone for a suspension."""
    return any(c.type == "Suspended" and c.status == "True" for c in observed.status.conditions)


def is_finished(observed: Observed) -> bool:
    """Whether the status says that the run has ended, well or badly."""
    return any(c.type == "Finished" and c.status == "True" for c in observed.status.conditions)


def stateful_set(observed: Observed, role: Role) -> Child | None:
    """A role's StatefulSet."""
    name = names.workload_name(observed.name, role)
    return observed.children.get(("StatefulSet", name))


def replicas_of(observed: Observed, role: Role) -> int:
    """Pods that a role's StatefulSet asks for now."""
    child = stateful_set(observed, role)
    return child.workload.replicas if child is not None and child.workload is not None else 0

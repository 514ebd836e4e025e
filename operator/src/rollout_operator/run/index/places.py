"""Places for runs at work: no more of a namespace are started than may be, and those that wait go by age.

A run that is being started holds a place from the decision until its status says so: of two that are
looked at in the same moment one takes the last place. One whose start failed after something of it was
made goes on holding it, since the next look goes on with what is there.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from rollout_api.conditions import Reason
from rollout_operator.cache.objects import Stored
from rollout_operator.controller.queue import Key
from rollout_operator.run.plan.model import Blocked

AGAIN_SECONDS = 300.0
"""A safety net: whoever gives a place back wakes the run that has waited longest."""
Waiting = tuple[str, Key]


class Places:
    """Which runs of each namespace are started, are being started, and wait for a place."""

    def __init__(self) -> None:
        self._started: dict[str, set[str]] = {}
        self._starting: dict[str, set[str]] = {}
        self._waiting: dict[str, list[Waiting]] = {}
        self._told: dict[str, dict[str, Waiting]] = {}
        """Runs that are being told to wait: a place that is given back before their status says so is theirs too."""

    def replace(self, before: Stored | None, after: Stored | None) -> Key | None:
        """A run has come, changed or gone; the run that may have a place now."""
        if _stand(before) == _stand(after):
            return None
        if before is not None:
            self._remove(before)
        if after is not None:
            self._add(after)
        freed = before is not None and _stand(before)[1:] != (False, False)
        if before is not None and (after is None or after.uid != before.uid):
            freed |= _discard(self._starting, before.key.namespace, before.uid)
        return self._first(before.key.namespace) if before is not None and freed else None

    def take(self, stored: Stored, most: int) -> Blocked | None:
        """A place for a run that is about to start, or why it waits. 0 is no bound."""
        namespace = stored.key.namespace
        mine = self._started.get(namespace, set()) | self._starting.get(namespace, set())
        num_started = len(mine - {stored.uid})
        ahead = self._num_ahead(stored)
        if most and most - num_started <= ahead:
            self._told.setdefault(namespace, {})[stored.uid] = _place(stored)
            return _wait(namespace, num_started, ahead, most)
        self._starting.setdefault(namespace, set()).add(stored.uid)
        return None

    def hold(self, stored: Stored) -> None:
        """A run of which something was made, and whose status does not say so yet: it has a place."""
        self._starting.setdefault(stored.key.namespace, set()).add(stored.uid)

    def settle(self, stored: Stored, *, made: bool = False) -> Key | None:
        """What was about to start has been started, or has not; the run that may have its place then.

        ``made``: something of the attempt is there, and will be gone on with.
        """
        namespace = stored.key.namespace
        _forget(self._told, namespace, stored.uid)
        started = stored.uid in self._started.get(namespace, ())
        if made and not started:
            return None
        was_starting = _discard(self._starting, namespace, stored.uid)
        return self._first(namespace) if was_starting and not started else None

    def _num_ahead(self, stored: Stored) -> int:
        """Runs that wait and are older."""
        waiting, mine = self._waiting.get(stored.key.namespace, []), _place(stored)
        told = self._told.get(stored.key.namespace, {}).values()
        return bisect_left(waiting, mine) + sum(
            one < mine and not _holds(waiting, one) for one in told
        )

    def _first(self, namespace: str) -> Key | None:
        """The oldest that waits, or is being told to."""
        waiting = [*self._waiting.get(namespace, [])[:1], *self._told.get(namespace, {}).values()]
        return min(waiting)[1] if waiting else None

    def _add(self, stored: Stored) -> None:
        namespace = stored.key.namespace
        if stored.facts.started:
            self._started.setdefault(namespace, set()).add(stored.uid)
        if _waits(stored):
            insort(self._waiting.setdefault(namespace, []), _place(stored))

    def _remove(self, stored: Stored) -> None:
        namespace = stored.key.namespace
        _discard(self._started, namespace, stored.uid)
        if _waits(stored):
            self._stop_waiting(namespace, _place(stored))

    def _stop_waiting(self, namespace: str, place: Waiting) -> None:
        waiting = self._waiting[namespace]
        del waiting[bisect_left(waiting, place)]
        if not waiting:
            del self._waiting[namespace]


def _holds(waiting: list[Waiting], one: Waiting) -> bool:
    index = bisect_left(waiting, one)
    return index < len(waiting) and waiting[index] == one


def _forget(told: dict[str, dict[str, Waiting]], namespace: str, uid: str) -> None:
    mine = told.get(namespace, {})
    mine.pop(uid, None)
    if not mine:
        told.pop(namespace, None)


def _stand(stored: Stored | None) -> tuple[str, bool, bool]:
    """Which run it is, whether it is started, and whether it waits for a place."""
    if stored is None:
        return "", False, False
    return stored.uid, stored.facts.started, _waits(stored)


def _waits(stored: Stored) -> bool:
    return Reason.TOO_MANY_RUNS.value in stored.facts.reasons


def _place(stored: Stored) -> Waiting:
    return stored.facts.created, stored.key


def _discard(found: dict[str, set[str]], namespace: str, uid: str) -> bool:
    """Whether it was there."""
    mine = found.get(namespace, set())
    there = uid in mine
    mine.discard(uid)
    if not mine:
        found.pop(namespace, None)
    return there


def _wait(namespace: str, num_started: int, ahead: int, most: int) -> Blocked:
    message = (
        f"{num_started} runs of namespace {namespace} are started, and {most} may be "
        f"(operator.runsPerNamespace); {ahead} of those that wait were made before this one"
    )
    return Blocked(
        reason=Reason.TOO_MANY_RUNS, message=message, stalled=False, retry_seconds=AGAIN_SECONDS
    )

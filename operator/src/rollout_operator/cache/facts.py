"""What is asked of many objects at once, read when an object is taken in: no scan parses a status again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

from rollout_api import GROUP
from rollout_operator.controller.queue import Key
from rollout_operator.kube.managed_fields import controller_uid

Document = Mapping[str, Any]
References = Callable[[str, Document], tuple[Key, ...]]
"""Of a namespace and a spec: where the objects of our kinds are, or would be, that the spec names."""
PENDING = "Pending"
SWEEP = "RolloutSweep"
"""The kind whose objects make objects of our kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``ready`` is the reason of Ready, ``references`` are objects of our kinds that its spec names.

    ``reasons`` are those of every condition, of an object that has not finished. ``started``: it has children
    of an attempt, and goes on. ``created`` is RFC 3339. ``sweep`` is the UID of the sweep that controls it.
    """

    ready: str = PENDING
    reasons: tuple[str, ...] = ()
    finished: bool = False
    suspended: bool = False
    started: bool = False
    created: str = ""
    references: tuple[Key, ...] = ()
    sweep: str = ""

    @property
    def at_work(self) -> bool:
        """Whether its coordinator writes, or will: it is neither over nor suspended."""
        return not self.finished and not self.suspended


def read_facts(meta: Document, spec: Document, status: Document, references: References) -> Facts:
    """The facts of one object."""
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    finished, suspended = _holds(conditions, "Finished"), _holds(conditions, "Suspended")
    said = () if finished else conditions.values()
    reasons = {intern(one.get("reason", "")) for one in said}
    return Facts(
        ready=intern(conditions.get("Ready", {}).get("reason", PENDING)),
        reasons=tuple(sorted(reasons)),
        finished=finished,
        suspended=suspended,
        started=status.get("attempt", 0) > 0 and not finished and not suspended,
        created=meta.get("creationTimestamp", ""),
        references=references(meta.get("namespace", ""), spec),
        sweep=intern(controller_uid(meta, GROUP, SWEEP)),
    )


def _holds(conditions: Mapping[str, Document], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"

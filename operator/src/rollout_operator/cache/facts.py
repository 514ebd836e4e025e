"""What is asked of many runs at once, read when an object is taken in: no scan parses a status again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

from rollout_operator.controller.queue import Key
from rollout_operator.run.index.references import RUN, references_of

Document = Mapping[str, Any]
PENDING = "Pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``ready`` is the reason of Ready, ``references`` are objects of our kinds that its spec names.

    ``reasons`` are those of every condition, of a run that has not finished. ``started``: it has children of
    an attempt, and goes on. ``created`` is RFC 3339.
    """

    ready: str = PENDING
    reasons: tuple[str, ...] = ()
    finished: bool = False
    suspended: bool = False
    started: bool = False
    created: str = ""
    references: tuple[Key, ...] = ()

    @property
    def upstreams(self) -> tuple[str, ...]:
        """Names of the runs that it starts from."""
        return tuple(key.name for key in self.references if key.kind == RUN)

    @property
    def at_work(self) -> bool:
        """Whether its coordinator writes, or will: it is neither over nor suspended."""
        return not self.finished and not self.suspended


def read_facts(meta: Document, spec: Document, status: Document) -> Facts:
    """The facts of one run."""
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
        references=references_of(meta.get("namespace", ""), spec),
    )


def _holds(conditions: Mapping[str, Document], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"

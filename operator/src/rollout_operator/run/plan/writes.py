"""Which children have to be written, and which have to go. Pure: a run in order needs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout_api import names
from rollout_operator.cache.children import Child, is_drifted
from rollout_operator.run.attempt import ScaleState
from rollout_operator.run.plan.model import ROLES, Desired

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Children to apply, in two rounds (StatefulSets last), and children to delete."""

    first: tuple[Place, ...] = ()
    workloads: tuple[Place, ...] = ()
    delete: tuple[Child, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything has to be done."""
        return bool(self.first or self.workloads or self.delete)


def live_of(run: str, wanted: Desired) -> dict[Place, ScaleState]:
    """Live fields by StatefulSet."""
    return {
        ("StatefulSet", names.workload_name(run, role)): wanted.live[role]
        for role in ROLES
        if role in wanted.live
    }


def plan_writes(
    run: str,
    wanted: Desired,
    expected: tuple[Place, ...],
    children: Mapping[Place, Child],
    accepted: Mapping[str, str],
) -> Writes:
    """What differs from what is recorded. ``accepted``: digests that the server made of our fields."""
    live = live_of(run, wanted)
    needed = [
        place
        for place in expected
        if place not in wanted.without
        and _differs(children.get(place), live.get(place), wanted.attempt, accepted)
    ]
    keep = {place for place in expected if place not in wanted.without}
    keep |= {("ConfigMap", wanted.record or ""), ("ConfigMap", names.keys_name(run))}
    return Writes(
        first=tuple(place for place in needed if place[0] != "StatefulSet"),
        workloads=tuple(place for place in needed if place[0] == "StatefulSet"),
        delete=tuple(
            child for place, child in children.items() if place not in keep and not child.deleting
        ),
    )


def _differs(
    child: Child | None, live: ScaleState | None, attempt: int, accepted: Mapping[str, str]
) -> bool:
    if child is None:
        return True
    if child.deleting:
        return False
    if child.attempt != attempt or is_drifted(child, accepted):
        return True
    work = child.workload
    if live is None or work is None:
        return False
    mine = (live.replicas, live.first, live.disruptions, live.gang_tries, live.hold_until)
    theirs = (work.replicas, work.first, work.disruptions, work.gang_tries, work.hold_until)
    return mine != theirs or (work.incarnation > 0 and work.incarnation != max(1, live.incarnation))

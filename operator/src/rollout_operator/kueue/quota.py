"""A run's quota as its Kueue Workload says it: a handful of scalars, parsed from the API object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_api import GROUP, names
from rollout_operator.kube.managed_fields import controller_uid

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the queue gave one role. ``topology``: Kueue places each pod itself, ``asked`` or not."""

    role: str
    count: int
    flavors: tuple[str, ...] = ()
    topology: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One Workload of ours. ``digest`` is of what was asked for.

    ``past_seconds`` is None when Kueue has counted no earlier admission.
    """

    namespace: str
    name: str
    uid: str
    version: int
    generation: int
    run: str
    run_uid: str
    queue: str
    digest: str
    active: bool = True
    deleting: bool = False
    finalizers: tuple[str, ...] = (names.FINALIZER_QUOTA,)
    conditions: tuple[Document, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    updates: tuple[Document, ...] = ()
    past_seconds: int | None = None

    def condition(self, kind: str) -> Document | None:
        """A condition of the Workload."""
        return next((one for one in self.conditions if one["type"] == kind), None)

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        found = self.condition(kind)
        return found is not None and found["status"] == "True"

    @property
    def held(self) -> bool:
        """Our finalizer is on it: it stays until we let it go."""
        return names.FINALIZER_QUOTA in self.finalizers

    @property
    def reserved(self) -> bool:
        """The queue counts this run's quota as used."""
        return self.holds("QuotaReserved")

    @property
    def usable(self) -> bool:
        """Pods may run: admitted, and not to be given back."""
        ends = self.deleting or self.holds("Evicted") or self.holds("Finished")
        return self.holds("Admitted") and self.reserved and not ends

    def granted(self, role: str) -> int | None:
        """Pods that the queue gave a role; None when it says nothing of it."""
        return next((one.count for one in self.assignments if one.role == role), None)


def parse_quota(live: Document) -> Quota | None:
    """A Workload's scalars; None for one that is not of the run that it names."""
    meta, spec, status = live["metadata"], live.get("spec") or {}, live.get("status") or {}
    labels = meta.get("labels") or {}
    uid = controller_uid(meta, GROUP, "RolloutRun")
    if not uid or labels.get(names.LABEL_RUN_UID) != uid:
        return None
    return Quota(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=int(meta["resourceVersion"]),
        generation=meta.get("generation", 0),
        run=labels.get(names.LABEL_RUN, ""),
        run_uid=uid,
        queue=spec.get("queueName", ""),
        digest=(meta.get("annotations") or {}).get(names.ANNOTATION_APPLIED, ""),
        active=spec.get("active", True) is not False,
        deleting="deletionTimestamp" in meta,
        finalizers=tuple(meta.get("finalizers") or ()),
        conditions=tuple(status.get("conditions") or ()),
        assignments=_assignments(spec, status),
        updates=tuple(
            update
            for check in status.get("admissionChecks") or ()
            for update in check.get("podSetUpdates") or ()
        ),
        past_seconds=status.get("accumulatedPastExecutionTimeSeconds"),
    )


def _assignments(spec: Document, status: Document) -> tuple[Assignment, ...]:
    sets = {one["name"]: one for one in spec.get("podSets") or ()}
    given = (status.get("admission") or {}).get("podSetAssignments") or ()
    return tuple(
        Assignment(
            role=one["name"],
            count=one.get("count", sets.get(one["name"], {}).get("count", 0)),
            flavors=tuple(sorted(set((one.get("flavors") or {}).values()))),
            topology=bool(one.get("topologyAssignment")),
            asked="topologyRequest" in sets.get(one["name"], {}),
        )
        for one in given
    )

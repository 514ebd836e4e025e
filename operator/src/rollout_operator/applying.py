"""Makes a run's children what the plan wants: the only place that writes them.

Server-side apply under one field manager. A child that is made must not be there as somebody else's
(no force); a child or pod that is changed or deleted must be the very one that was seen (uid and
resourceVersion), else it is looked at again. Fields that others keep
changing are taken back three times in ten minutes, then the run says so.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from rollout_api import names
from rollout_operator.authorities import Authorities
from rollout_operator.desired.inputs import Inputs, Manifest, plain_meta
from rollout_operator.desired.record import (
    Record,
    build_keys,
    read_record,
    render_record,
    with_live,
)
from rollout_operator.errors import Conflict, FieldConflict, Terminating
from rollout_operator.kube.client import KubeClient, gather_bounded
from rollout_operator.kube.owned import differences, owned_digest, seal, writer_of
from rollout_operator.kube.resources import CONFIG_MAPS, PODS, RUNS, resource_of
from rollout_operator.observed import Child
from rollout_operator.planning.model import Observed, PodDeletion, Wanted
from rollout_operator.planning.writes import Place, Writes, is_drifted, live_of, plan_writes
from rollout_operator.store import Store

log = logging.getLogger(__name__)

RECORDS_MAX = 64
ACCEPTED_MAX = 100_000
WRITES_AT_ONCE_MAX = 8
REVERTS_MAX = 3
REVERT_SECONDS = 600.0
REVERTS_KEPT_MAX = 10_000


@dataclass(slots=True, kw_only=True)
class Applier:
    """Owns what only a writer remembers: records it has read, digests it accepts, fields it took back."""

    client: KubeClient
    store: Store
    keys: Callable[[], str]
    authorities: Authorities
    clock: Callable[[], float] = time.monotonic
    accepted: dict[str, str] = field(default_factory=dict)
    _records: OrderedDict[tuple[str, int], Record] = field(default_factory=OrderedDict)
    _reverts: dict[tuple[str, str], deque[float]] = field(default_factory=dict)

    async def ensure(
        self, observed: Observed, wanted: Wanted, inputs: Callable[[], Inputs], now: datetime
    ) -> str:
        """Bring the children to what is wanted; the name of the attempt's record.

        Raises Terminating when the run itself turns out to be gone.
        """
        expected = self._expected(observed, wanted)
        there = self.store.children(observed.namespace, observed.uid).keys()
        missing = not expected or not set(expected) - wanted.without <= there
        if missing and observed.status.attempt >= wanted.attempt:
            await self._confirm(observed)
        if wanted.record is None:
            known = self._records.get((observed.uid, wanted.attempt))
            record = known if known is not None else render_record(inputs())
            await self._apply_new(record.config_map)
            self._remember(observed.uid, record)
            name = record.name
        else:
            name = wanted.record
        if any(one.replicas for one in wanted.live.values()):
            await self._ensure_keys(observed, wanted, now)
        expected = expected or _places(self._records[observed.uid, wanted.attempt])
        await self._ensure_recorded(observed, replace(wanted, record=name), expected)
        await self._delete_pods(wanted)
        return name

    async def remove(self, observed: Observed) -> None:
        """Delete every child of a run; the run stays. One that cannot be deleted keeps no other.

        Records go last: while one is there, it is known that something is left.
        """
        children = [
            one
            for one in self.store.children(observed.namespace, observed.uid).values()
            if not one.deleting
        ]
        others = [self._delete(one) for one in children if not one.expected]
        await gather_bounded([self.authorities.remove(observed), *others], WRITES_AT_ONCE_MAX)
        records = [self._delete(one) for one in children if one.expected]
        await gather_bounded(records, WRITES_AT_ONCE_MAX)

    def forget(self, uid: str) -> None:
        """The run is gone."""
        self.authorities.forget(uid)
        for key in [key for key in self._records if key[0] == uid]:
            del self._records[key]

    # -- recorded children --------------------------------------------------------------------------

    def _expected(self, observed: Observed, wanted: Wanted) -> tuple[Place, ...]:
        """Every child that the attempt's record lists; none while there is no record."""
        record = self.store.children(observed.namespace, observed.uid).get(
            ("ConfigMap", wanted.record or "")
        )
        return _parse_places(record.expected) if record is not None else ()

    async def _confirm(self, observed: Observed) -> None:
        """Children that vanish are often those of a run that is gone, of which nobody has told us yet."""
        chosen = f"metadata.name={observed.name}"
        found = await self.client.list(RUNS, observed.namespace, fieldSelector=chosen)
        metas = [one["metadata"] for one in found["items"]]
        if not any(one["uid"] == observed.uid and "deletionTimestamp" not in one for one in metas):
            raise Terminating(f"run {observed.namespace}/{observed.name}", 404, "is gone")

    async def _ensure_recorded(
        self, observed: Observed, wanted: Wanted, expected: tuple[Place, ...]
    ) -> None:
        children = self.store.children(observed.namespace, observed.uid)
        writes = plan_writes(observed.name, wanted, expected, children, self.accepted)
        if writes:
            await self._write(observed, wanted, writes)

    async def _write(self, observed: Observed, wanted: Wanted, writes: Writes) -> None:
        record = await self._record(observed, wanted)
        live = live_of(observed.name, wanted)
        children = self.store.children(observed.namespace, observed.uid)
        for round_ in (writes.first, writes.workloads):
            tasks = []
            for place in round_:
                manifest = record.child(*place)
                if manifest is None:
                    continue
                manifest = with_live(manifest, live[place]) if place in live else seal(manifest)
                tasks.append(self._apply(manifest, children.get(place), wanted.attempt))
            await gather_bounded(tasks, WRITES_AT_ONCE_MAX)
        for child in writes.delete:
            await self._delete(child)

    async def _record(self, observed: Observed, wanted: Wanted) -> Record:
        key = (observed.uid, wanted.attempt)
        if key not in self._records:
            assert wanted.record is not None
            live = await self.client.get(CONFIG_MAPS, observed.namespace, wanted.record)
            self._remember(observed.uid, read_record(live))
        self._records.move_to_end(key)
        return self._records[key]

    def _remember(self, uid: str, record: Record) -> None:
        self._records[uid, record.attempt] = record
        while len(self._records) > RECORDS_MAX:
            self._records.popitem(last=False)

    async def _apply(self, manifest: Manifest, child: Child | None, attempt: int) -> None:
        if child is None:
            await self._apply_new(manifest)
            return
        drifted = child.attempt == attempt and is_drifted(child, self.accepted)
        if drifted and not await self._must_repair(manifest, child):
            return
        meta = {**manifest["metadata"], "uid": child.uid, "resourceVersion": str(child.version)}
        await self._send({**manifest, "metadata": meta}, force=True)

    async def _apply_new(self, manifest: Manifest) -> None:
        """Make a child; one of that name that is somebody else's is not taken over."""
        try:
            await self._send(manifest, force=False)
        except Conflict as error:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            message = f"{name} exists and is not this run's: {error.message}"
            raise FieldConflict(message, 30.0) from error

    async def _send(self, manifest: Manifest, *, force: bool) -> None:
        resource = resource_of(manifest["kind"])
        answer = await self.client.apply(
            manifest, resource, manager=names.MANAGER_CHILDREN, force=force
        )
        child = self.store.learn(resource, answer)
        owned = child.owned if child is not None else owned_digest(answer)
        if owned != answer["metadata"].get("annotations", {}).get(names.ANNOTATION_APPLIED):
            self._accept(answer["metadata"]["uid"], owned)

    def _accept(self, uid: str, digest: str) -> None:
        self.accepted[uid] = digest
        while len(self.accepted) > ACCEPTED_MAX:
            del self.accepted[next(iter(self.accepted))]

    async def _must_repair(self, manifest: Manifest, child: Child) -> bool:
        """Whether the live object really lacks something of ours; raises when we have lost patience."""
        live = await self.client.get(resource_of(child.kind), child.namespace, child.name)
        lost = next(differences(_comparable(manifest), live), None)
        if lost is None:
            self._accept(child.uid, owned_digest(live))
            return False
        now = self.clock()
        times = self._reverts.setdefault((child.uid, lost), deque())
        while times and now - times[0] > REVERT_SECONDS:
            times.popleft()
        if len(times) >= REVERTS_MAX:
            raise FieldConflict(
                f"{child.kind} {child.name}: {writer_of(live) or 'somebody'} keeps changing {lost}",
                REVERT_SECONDS - (now - times[0]) + 1,
            )
        times.append(now)
        while len(self._reverts) > REVERTS_KEPT_MAX:
            del self._reverts[next(iter(self._reverts))]
        log.info("child repaired kind=%s name=%s field=%s", child.kind, child.name, lost)
        return True

    async def _delete(self, child: Child) -> None:
        await self.client.delete(
            resource_of(child.kind),
            child.namespace,
            child.name,
            uid=child.uid,
            resource_version=str(child.version),
        )

    async def _delete_pods(self, wanted: Wanted) -> None:
        """Pods in the way, as they were seen: one that has changed since then is looked at again."""
        tasks = [self._delete_pod(one) for one in wanted.deletions]
        await gather_bounded(tasks, WRITES_AT_ONCE_MAX)

    async def _delete_pod(self, one: PodDeletion) -> None:
        log.info("pod deleted pod=%s why=%s force=%s", one.pod.name, one.why, one.force)
        await self.client.delete(
            PODS,
            one.pod.namespace,
            one.pod.name,
            uid=one.pod.uid,
            resource_version=str(one.pod.version),
            grace_seconds=0 if one.force else None,
        )

    # -- keys and certificate -------------------------------------------------------------------------

    async def _ensure_keys(self, observed: Observed, wanted: Wanted, now: datetime) -> None:
        """The run's Secret, and the token keys, which tell us when the Secret goes."""
        name = names.keys_name(observed.name)
        child = self.store.children(observed.namespace, observed.uid).get(("ConfigMap", name))
        doubted = child is None or child.deleting or is_drifted(child, self.accepted)
        secret = await self.authorities.ensure(
            observed, now, is_new=_is_new(observed, wanted), doubted=doubted
        )
        meta = plain_meta(observed.name, observed.namespace, observed.uid, name)
        manifest = build_keys(meta, self.keys(), names.certificate_name(observed.name), secret)
        digest = manifest["metadata"]["annotations"][names.ANNOTATION_APPLIED]
        if child is not None and child.deleting:
            return
        if child is None or child.digest != digest or is_drifted(child, self.accepted):
            await self._apply(manifest, child, wanted.attempt)


def _is_new(observed: Observed, wanted: Wanted) -> bool:
    """Whether nothing of the run has been made yet, as far as anybody knows."""
    return wanted.record is None and wanted.attempt == 1 and not observed.children


def _parse_places(listed: str) -> tuple[Place, ...]:
    return tuple(
        (kind, name) for kind, _, name in (one.partition("/") for one in listed.split(","))
    )


def _places(record: Record) -> tuple[Place, ...]:
    return tuple((child["kind"], child["metadata"]["name"]) for child in record.children)


def _comparable(manifest: Manifest) -> Mapping[str, Any]:
    """A manifest without its seal and preconditions."""
    meta = {k: v for k, v in manifest["metadata"].items() if k not in ("uid", "resourceVersion")}
    annotations = {
        key: text
        for key, text in meta.get("annotations", {}).items()
        if key != names.ANNOTATION_APPLIED
    }
    return {**manifest, "metadata": {**meta, "annotations": annotations}}

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

from rollout_api import GROUP, names
from rollout_api.names import Role
from rollout_operator.cache.children import Child, parse_child
from rollout_operator.cache.store import Store
from rollout_operator.errors import Conflict, FieldConflict, NotFound, Terminating
from rollout_operator.kube.client import KubeClient, gather_bounded
from rollout_operator.kube.managed_fields import (
    controller_uid,
    differences,
    owned_digest,
    seal,
    writer_of,
)
from rollout_operator.kube.resources import CONFIG_MAPS, PODS, RUNS, STATEFUL_SETS, resource_of
from rollout_operator.run.attempt import (
    Record,
    ScaleState,
    build_keys,
    read_record,
    render_record,
    sign_record,
    with_live,
)
from rollout_operator.run.permitted import KINDS, Permit, check_permitted
from rollout_operator.run.plan.model import Desired, Observed, PodDeletion
from rollout_operator.run.plan.writes import Place, Writes, is_drifted, live_of, plan_writes
from rollout_operator.run.render.inputs import Inputs, Manifest, plain_meta
from rollout_operator.run.tls import Authorities
from rollout_operator.signing import Keyring

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
    keyring: Callable[[], Keyring]
    authorities: Authorities
    clock: Callable[[], float] = time.monotonic
    accepted: dict[str, str] = field(default_factory=dict)
    _records: OrderedDict[tuple[str, int], Record] = field(default_factory=OrderedDict)
    _reverts: dict[tuple[str, str], deque[float]] = field(default_factory=dict)

    async def ensure(
        self, observed: Observed, wanted: Desired, inputs: Callable[[], Inputs], now: datetime
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
            rendered = known if known is not None else render_record(inputs())
            record = sign_record(rendered, self.keyring())
            await self._apply_new(record.config_map, observed.permit())
            self._remember(observed.uid, record)
            name = record.name
        else:
            name = wanted.record
        if any(one.replicas for one in wanted.live.values()):
            await self._ensure_keys(observed, wanted, now)
        expected = expected or _places(self._records[observed.uid, wanted.attempt])
        await self._sign_again(observed.children.get(("ConfigMap", name)))
        await self._ensure_recorded(observed, replace(wanted, record=name), expected)
        await self._delete_pods(wanted)
        return name

    async def lower(self, observed: Observed, live: Mapping[Role, ScaleState]) -> None:
        """Give StatefulSets fewer pods, as they were seen; all else of them stays."""
        children = self.store.children(observed.namespace, observed.uid)
        for role, wanted in live.items():
            child = children.get(("StatefulSet", names.workload_name(observed.name, role)))
            if child is None or child.workload is None or child.deleting:
                continue
            if child.workload.replicas > wanted.replicas:
                await self._lower(child, wanted.replicas)

    async def _lower(self, child: Child, replicas: int) -> None:
        answer = await self.client.merge(
            {
                "metadata": {"uid": child.uid, "resourceVersion": str(child.version)},
                "spec": {"replicas": replicas},
            },
            STATEFUL_SETS,
            child.namespace,
            child.name,
            manager=names.MANAGER_CHILDREN,
        )
        self.store.learn(STATEFUL_SETS, answer)

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

    def _expected(self, observed: Observed, wanted: Desired) -> tuple[Place, ...]:
        """Every child that the attempt's record lists; none while there is no record."""
        record = observed.children.get(("ConfigMap", wanted.record or ""))
        return _parse_places(record.expected) if record is not None else ()

    async def _confirm(self, observed: Observed) -> None:
        """Children that vanish are often those of a run that is gone, of which nobody has told us yet."""
        chosen = f"metadata.name={observed.name}"
        found = await self.client.list(RUNS, observed.namespace, fieldSelector=chosen)
        metas = [one["metadata"] for one in found["items"]]
        if not any(one["uid"] == observed.uid and "deletionTimestamp" not in one for one in metas):
            raise Terminating(f"run {observed.namespace}/{observed.name}", 404, "is gone")

    async def _sign_again(self, record: Child | None) -> None:
        """With the key that signs now, while the one before it still verifies."""
        if record is None or self.keyring().is_current(record.signature):
            return
        signature = self.keyring().sign(record.content)
        meta = {"uid": record.uid, "resourceVersion": str(record.version)}
        answer = await self.client.merge(
            {"metadata": {**meta, "annotations": {names.ANNOTATION_SIGNATURE: signature}}},
            CONFIG_MAPS,
            record.namespace,
            record.name,
            manager=names.MANAGER_CHILDREN,
        )
        self.store.learn(CONFIG_MAPS, answer)

    async def _ensure_recorded(
        self, observed: Observed, wanted: Desired, expected: tuple[Place, ...]
    ) -> None:
        children = self.store.children(observed.namespace, observed.uid)
        writes = plan_writes(observed.name, wanted, expected, children, self.accepted)
        if writes:
            await self._write(observed, wanted, writes)

    async def _write(self, observed: Observed, wanted: Desired, writes: Writes) -> None:
        record = await self._record(observed, wanted)
        permit = observed.permit(record.allowances)
        live = live_of(observed.name, wanted)
        children = self.store.children(observed.namespace, observed.uid)
        for round_ in (writes.first, writes.workloads):
            tasks = []
            for place in round_:
                manifest = record.child(*place)
                if manifest is None:
                    continue
                manifest = with_live(manifest, live[place]) if place in live else seal(manifest)
                child = children.get(place)
                tasks.append(self._apply(manifest, child, wanted.attempt, permit))
            await gather_bounded(tasks, WRITES_AT_ONCE_MAX)
        for child in writes.delete:
            await self._delete(child)

    async def _record(self, observed: Observed, wanted: Desired) -> Record:
        key = (observed.uid, wanted.attempt)
        if key not in self._records:
            assert wanted.record is not None
            live = await self.client.get(CONFIG_MAPS, observed.namespace, wanted.record)
            self._remember(observed.uid, read_record(live, self.keyring()))
        self._records.move_to_end(key)
        return self._records[key]

    def _remember(self, uid: str, record: Record) -> None:
        self._records[uid, record.attempt] = record
        while len(self._records) > RECORDS_MAX:
            self._records.popitem(last=False)

    async def _apply(
        self, manifest: Manifest, child: Child | None, attempt: int, permit: Permit
    ) -> None:
        if child is None:
            await self._apply_new(manifest, permit)
            return
        drifted = child.attempt == attempt and is_drifted(child, self.accepted)
        if drifted and not await self._must_repair(manifest, child):
            return
        meta = {**manifest["metadata"], "uid": child.uid, "resourceVersion": str(child.version)}
        await self._send({**manifest, "metadata": meta}, permit, new=False)

    async def _apply_new(self, manifest: Manifest, permit: Permit) -> None:
        """Make a child. One of that name that is there is never taken over: ours is looked at again first."""
        try:
            await self._send(manifest, permit, new=True)
        except Conflict:
            await self._meet(manifest, permit)
            raise

    async def _meet(self, manifest: Manifest, permit: Permit) -> None:
        """Learn what is there already. Raises FieldConflict when it is not this run's, or no record of it."""
        resource, name = resource_of(manifest["kind"]), manifest["metadata"]["name"]
        try:
            live = await self.client.get(resource, permit.namespace, name)
        except NotFound:
            return
        what = f"{manifest['kind']} {name}"
        if controller_uid(live["metadata"], GROUP, "RolloutRun") != permit.uid:
            message = (
                f"{what} exists and is not this run's; delete it, or give the run another name"
            )
            raise FieldConflict(message, 30.0)
        child = parse_child(resource.kind, live)
        if child is None or not self._is_believed(child):
            message = f"{what} exists and was not made by this operator; delete it"
            raise FieldConflict(message, 30.0)
        self.store.put(resource, live)

    def _is_believed(self, child: Child) -> bool:
        """Whether a child is no record, or one that verifies."""
        return not child.expected or self.keyring().verify(child.content, child.signature)

    async def _send(self, manifest: Manifest, permit: Permit, *, new: bool) -> None:
        """The only way out for what a run is made of."""
        check_permitted(manifest, permit)
        resource, manager = resource_of(manifest["kind"]), names.MANAGER_CHILDREN
        if new:
            answer = await self.client.apply_new(manifest, resource, manager=manager)
        else:
            answer = await self.client.apply(manifest, resource, manager=manager, force=True)
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

    async def _delete_pods(self, wanted: Desired) -> None:
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

    async def _ensure_keys(self, observed: Observed, wanted: Desired, now: datetime) -> None:
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
            await self._apply(manifest, child, wanted.attempt, observed.permit())


def _is_new(observed: Observed, wanted: Desired) -> bool:
    """Whether nothing of the run has been made yet, as far as anybody knows."""
    return wanted.record is None and wanted.attempt == 1 and not observed.children


def _parse_places(listed: str) -> tuple[Place, ...]:
    places = (one.partition("/") for one in listed.split(","))
    return tuple((kind, name) for kind, _, name in places if kind in KINDS)


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

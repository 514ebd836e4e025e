"""Makes a run's children what the plan wants, as the record of its attempt has them."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from rollout_api import names
from rollout_api.names import Role
from rollout_operator.apply.apply_set import ApplySet
from rollout_operator.cache.children import Child, is_drifted
from rollout_operator.cache.store import Store
from rollout_operator.errors import Conflict, NotFound, Terminating
from rollout_operator.kube.client import KubeClient, gather_bounded
from rollout_operator.kube.managed_fields import seal
from rollout_operator.kube.resources import CONFIG_MAPS, RUNS
from rollout_operator.run.attempt import (
    Record,
    ScaleState,
    build_keys,
    read_record,
    render_record,
    sign_record,
    with_live,
)
from rollout_operator.run.permitted import KINDS
from rollout_operator.run.plan.attempts import is_finished
from rollout_operator.run.plan.model import Desired, Observed, PodDeletion
from rollout_operator.run.plan.writes import Place, Writes, live_of, plan_writes
from rollout_operator.run.render.inputs import Inputs, plain_meta
from rollout_operator.run.tls import Authorities
from rollout_operator.signing import Keyring

log = logging.getLogger(__name__)

RECORDS_MAX = 64
WRITES_AT_ONCE_MAX = 8


@dataclass(slots=True, kw_only=True)
class Applier:
    """Owns the records it has read, and the exit."""

    client: KubeClient
    store: Store
    keys: Callable[[], str]
    keyring: Callable[[], Keyring]
    authorities: Authorities
    clock: Callable[[], float] = time.monotonic
    _writer: ApplySet = field(init=False)
    _records: OrderedDict[tuple[str, int], Record] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """A record that is found is believed when it verifies."""
        self._writer = ApplySet(
            client=self.client, store=self.store, believes=self._is_believed, clock=self.clock
        )

    async def ensure(
        self, observed: Observed, wanted: Desired, inputs: Callable[[], Inputs], now: datetime
    ) -> str:
        """Bring the children to what is wanted; the name of the attempt's record.

        Raises Terminating when the run itself turns out to be gone, Conflict when it has gone on.
        """
        expected = self._expected(observed, wanted)
        told = observed.status.attempt >= wanted.attempt
        works = any(one.replicas for one in wanted.live.values())
        missing = self._misses(observed, wanted, expected, works=works)
        if missing and told:
            await self._confirm(observed)
        if wanted.record is None:
            known = self._remembered(observed, wanted.attempt)
            rendered = known if known is not None else render_record(inputs())
            record = sign_record(rendered, self.keyring())
            await self._writer.apply_new(record.config_map, observed.permit())
            self._remember(observed.uid, record)
            name = record.name
        else:
            name = wanted.record
        if works:
            await self._ensure_keys(observed, wanted, now, asks=told and not missing)
        expected = expected or _places(self._records[observed.uid, wanted.attempt])
        await self._sign_again(observed.children.get(("ConfigMap", name)))
        await self._ensure_recorded(observed, replace(wanted, record=name), expected)
        await self._delete_pods(wanted)
        return name

    async def is_lost(self, observed: Observed, inputs: Inputs) -> bool:
        """Whether the record that the status names is gone for good: nobody here remembers it, and another one would be rendered.

        Raises Conflict where it is there all the same, or the run has gone on; Terminating where the run is gone.
        """
        told = observed.status.configuration
        assert told is not None
        if self._remembered(observed, inputs.attempt) or render_record(inputs).name == told:
            return False
        await self._confirm(observed)
        try:
            await self.client.get(CONFIG_MAPS, observed.namespace, told, metadata_only=True)
        except NotFound:
            return True
        raise Conflict(f"ConfigMap {observed.namespace}/{told}", 409, "is there: not told of yet")

    async def lower(self, observed: Observed, live: Mapping[Role, ScaleState]) -> None:
        """Give StatefulSets fewer pods, as they were seen; all else of them stays."""
        children = self.store.children(observed.namespace, observed.uid)
        for role, wanted in live.items():
            child = children.get(("StatefulSet", names.workload_name(observed.name, role)))
            if child is None or child.workload is None or child.deleting:
                continue
            if child.workload.replicas > wanted.replicas:
                await self._writer.merge({"spec": {"replicas": wanted.replicas}}, child)

    async def remove(self, observed: Observed) -> None:
        """Delete every child of a run; the run stays. One that cannot be deleted keeps no other.

        Records go last: while one is there, it is known that something is left.
        """
        children = [
            one
            for one in self.store.children(observed.namespace, observed.uid).values()
            if not one.deleting
        ]
        others = [self._writer.delete(one) for one in children if not one.expected]
        await gather_bounded([self.authorities.remove(observed), *others], WRITES_AT_ONCE_MAX)
        records = [self._writer.delete(one) for one in children if one.expected]
        await gather_bounded(records, WRITES_AT_ONCE_MAX)

    async def seek_secret(self, observed: Observed) -> None:
        """Delete the Secret of a run of which nothing else is left, should there be one."""
        await self.authorities.remove(observed)

    def sought(self, uid: str) -> datetime | None:
        """When the Secret of a run was last looked for to be deleted; None: not as far as this process remembers."""
        return self.authorities.sought(uid)

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

    def _misses(
        self, observed: Observed, wanted: Desired, expected: tuple[Place, ...], *, works: bool
    ) -> bool:
        """Whether something that is watched has to be made."""
        needed = set(expected) - wanted.without
        if works:
            needed.add(("ConfigMap", names.keys_name(observed.name)))
        there = self.store.children(observed.namespace, observed.uid).keys()
        return not expected or not needed <= there

    async def _confirm(self, observed: Observed) -> None:
        """Ask before a child is made again, which is bound to no version of the run: ours may be old.

        Children that vanish are often those of a run that is gone, suspended or over, of which nobody has told us
        yet; another replica may have removed them.
        """
        chosen = f"metadata.name={observed.name}"
        found = await self.client.list(RUNS, observed.namespace, fieldSelector=chosen)
        what = f"run {observed.namespace}/{observed.name}"
        live = next((one for one in found["items"] if _is_living(one, observed.uid)), None)
        if live is None:
            raise Terminating(what, 404, "is gone")
        if _has_gone_on(live, observed):
            raise Conflict(what, 409, "has gone on since it was looked at")

    async def _sign_again(self, record: Child | None) -> None:
        """With the key that signs now, while the one before it still verifies."""
        if record is None or self.keyring().is_current(record.signature):
            return
        signature = self.keyring().sign(record.content)
        annotations = {names.ANNOTATION_SIGNATURE: signature}
        await self._writer.merge({"metadata": {"annotations": annotations}}, record)

    async def _ensure_recorded(
        self, observed: Observed, wanted: Desired, expected: tuple[Place, ...]
    ) -> None:
        children = self.store.children(observed.namespace, observed.uid)
        writes = plan_writes(observed.name, wanted, expected, children, self._writer.accepted)
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
                repair = child is not None and child.attempt == wanted.attempt
                tasks.append(self._writer.apply(manifest, child, permit, repair=repair))
            await gather_bounded(tasks, WRITES_AT_ONCE_MAX)
        for child in writes.delete:
            await self._writer.delete(child)

    async def _record(self, observed: Observed, wanted: Desired) -> Record:
        key = (observed.uid, wanted.attempt)
        assert wanted.record is not None
        if key not in self._records or self._records[key].name != wanted.record:
            live = await self.client.get(CONFIG_MAPS, observed.namespace, wanted.record)
            self._remember(observed.uid, read_record(live, self.keyring()))
        self._records.move_to_end(key)
        return self._records[key]

    def _remembered(self, observed: Observed, attempt: int) -> Record | None:
        """The record of an attempt as this process has read or made it; of one that was told of, no other than that."""
        known = self._records.get((observed.uid, attempt))
        told = observed.status.configuration if observed.status.attempt == attempt else None
        return known if known is not None and told in {None, known.name} else None

    def _remember(self, uid: str, record: Record) -> None:
        self._records[uid, record.attempt] = record
        while len(self._records) > RECORDS_MAX:
            self._records.popitem(last=False)

    def _is_believed(self, child: Child) -> bool:
        """Whether a child is no record, or one that verifies."""
        return not child.expected or self.keyring().verify(child.content, child.signature)

    async def _delete_pods(self, wanted: Desired) -> None:
        """Pods in the way, as they were seen: one that has changed since then is looked at again."""
        tasks = [self._delete_pod(one) for one in wanted.deletions]
        await gather_bounded(tasks, WRITES_AT_ONCE_MAX)

    async def _delete_pod(self, one: PodDeletion) -> None:
        log.info("pod deleted pod=%s why=%s force=%s", one.pod.name, one.why, one.force)
        await self._writer.delete_pod(one.pod, force=one.force)

    # -- keys and certificate -------------------------------------------------------------------------

    async def _ensure_keys(
        self, observed: Observed, wanted: Desired, now: datetime, *, asks: bool
    ) -> None:
        """The run's Secret, and the token keys, which tell us when the Secret goes. ``asks`` before one is made again."""

        async def confirm() -> None:
            if asks:
                await self._confirm(observed)

        name = names.keys_name(observed.name)
        child = self.store.children(observed.namespace, observed.uid).get(("ConfigMap", name))
        doubted = child is None or child.deleting or is_drifted(child, self._writer.accepted)
        secret = await self.authorities.ensure(
            observed, now, is_new=_is_new(observed, wanted), doubted=doubted, confirm=confirm
        )
        meta = plain_meta(observed.name, observed.namespace, observed.uid, name)
        manifest = build_keys(meta, self.keys(), names.certificate_name(observed.name), secret)
        digest = manifest["metadata"]["annotations"][names.ANNOTATION_APPLIED]
        if child is not None and child.deleting:
            return
        if child is None or child.digest != digest or is_drifted(child, self._writer.accepted):
            repair = child is not None and child.attempt == wanted.attempt
            await self._writer.apply(manifest, child, observed.permit(), repair=repair)


def _is_living(run: Mapping[str, Any], uid: str) -> bool:
    return run["metadata"]["uid"] == uid and "deletionTimestamp" not in run["metadata"]


def _has_gone_on(run: Mapping[str, Any], observed: Observed) -> bool:
    """Whether its spec, its attempt or its end is another one than what was looked at."""
    status = run.get("status") or {}
    is_over = any(
        one["type"] == "Finished" and one["status"] == "True"
        for one in status.get("conditions", ())
    )
    now = (run["metadata"].get("generation", 0), status.get("attempt", 0), is_over)
    return now != (observed.generation, observed.status.attempt, is_finished(observed))


def _is_new(observed: Observed, wanted: Desired) -> bool:
    """Whether nothing of the run has been made yet, as far as anybody knows."""
    return wanted.record is None and wanted.attempt == 1 and not observed.children


def _parse_places(listed: str) -> tuple[Place, ...]:
    places = (one.partition("/") for one in listed.split(","))
    return tuple((kind, name) for kind, _, name in places if kind in KINDS)


def _places(record: Record) -> tuple[Place, ...]:
    return tuple((child["kind"], child["metadata"]["name"]) for child in record.children)

"""The store, with what runs are looked up by besides: their places, and their quota in Kueue."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf

from rollout_operator.cache.objects import Document, Stored
from rollout_operator.cache.store import Owner, Store
from rollout_operator.controller.queue import Key
from rollout_operator.kube.resources import Resource
from rollout_operator.kueue.quota import Quota, parse_quota
from rollout_operator.kueue.resources import WORKLOADS
from rollout_operator.run.index.made import is_made
from rollout_operator.run.index.places import Places
from rollout_operator.run.index.references import (
    ENDPOINT,
    RUN,
    SNAPSHOT,
    references_of,
    saved_run,
    served_from,
)

REFERENCES = {RUN: references_of, SNAPSHOT: saved_run, ENDPOINT: served_from}


class RunStore(Store):
    """All that is known of the cluster, whose runs wait for each other, for a place and for quota."""

    def __init__(self, changed: Callable[[Key], None] = lambda _: None) -> None:
        super().__init__(changed, references=REFERENCES, works=RUN)
        self.places = Places()
        self._quotas: dict[Key, dict[str, Quota]] = {}
        self._quota_keys: dict[Owner, Key] = {}

    def has_begun(self, key: Key) -> bool:
        """Whether an attempt is recorded of which the run's status does not tell yet, and which shall go on."""
        stored = self._objects.get(key)
        if stored is None or stored.deleting or stored.facts.started or stored.facts.finished:
            return False
        told = stored.read_status().get("attempt", 0)
        mine = self.children(key.namespace, stored.uid).values()
        recorded = any(one.expected and one.attempt > told for one in mine)
        return recorded and not json.loads(stored.spec).get("suspend")

    def _index(self, before: Stored | None, after: Stored | None) -> None:
        super()._index(before, after)
        if (key := self.places.replace(before, after)) is not None:
            self._changed(key)
        one = after or before
        if one is not None and _has_ended(before, after):
            for key in one.facts.references:
                self._changed(key)

    # -- quota --------------------------------------------------------------------------------------

    def quota(self, namespace: str, uid: str) -> Quota | None:
        """The Workload of a run."""
        key = self._quota_keys.get((namespace, uid))
        return self._quotas[key].get(uid) if key else None

    def quotas_of(self, key: Key) -> list[Quota]:
        """Workloads of a run of this name, and of those that had it before and are gone."""
        return list(self._quotas.get(key, {}).values())

    def put(self, resource: Resource, live: Document, *, notify: bool = True) -> None:
        """Take in an object that a reader (or, without ``notify``, our own write) has shown."""
        if resource is not WORKLOADS:
            super().put(resource, live, notify=notify)
        elif live["metadata"]["uid"] not in self._gone:
            self._put_quota(live, notify=notify)

    def drop(self, resource: Resource, live: Document) -> None:
        """An object is gone."""
        if resource is not WORKLOADS:
            super().drop(resource, live)
            return
        uid = live["metadata"]["uid"]
        self._bury(uid)
        if (owner := self._owners.pop(uid, None)) is None:
            return
        self._forget_quota(owner, uid)
        self._touch(owner)

    def keep_only(
        self, resource: Resource, namespace: str | None, uids: set[str], version: float = inf
    ) -> None:
        """Forget what a list of this version has not shown; what we have made since then is newer."""
        if resource is not WORKLOADS:
            super().keep_only(resource, namespace, uids, version)
            return
        known = [quota for mine in self._quotas.values() for quota in mine.values()]
        for quota in known:
            inside = namespace in {None, quota.namespace}
            if inside and quota.uid not in uids and quota.version <= version:
                self.drop(WORKLOADS, {"metadata": {"uid": quota.uid}})

    def _put_quota(self, live: Document, *, notify: bool) -> None:
        quota = parse_quota(live)
        if quota is None:
            return
        key = Key(namespace=quota.namespace, name=quota.run, kind=RUN)
        owner = (quota.namespace, quota.run_uid)
        before = self.quota(*owner)
        if before is not None and before.version >= quota.version:
            return
        self._quotas.setdefault(key, {})[quota.run_uid] = quota
        self._quota_keys[owner] = key
        self._owners[quota.uid] = owner
        if notify:
            self._touch(owner)

    def _forget_quota(self, owner: Owner, uid: str) -> None:
        quota = self.quota(*owner)
        if quota is None or quota.uid != uid:
            return
        key = self._quota_keys.pop(owner)
        del self._quotas[key][quota.run_uid]
        if not self._quotas[key]:
            del self._quotas[key]

    def _key_of(self, owner: Owner) -> Key | None:
        """Quota of a run that is gone is looked at under the name that the run had."""
        return super()._key_of(owner) or self._quota_keys.get(owner)


def _has_ended(before: Stored | None, after: Stored | None) -> bool:
    """Whether a snapshot of a schedule is over, or gone: its run looks at what comes next."""
    if not is_made(after or before):
        return False
    over = after is None or after.deleting or after.facts.finished
    return over != (before is not None and (before.deleting or before.facts.finished))

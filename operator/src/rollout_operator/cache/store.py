"""What the operator remembers of the cluster: runs as compact bytes, children, pods and nodes as scalars.

Fed by the watches and by the answers to our own writes; an older version never replaces a newer one.
Deletions are final by UID. Every change names the key that must be looked at again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from math import inf

from rollout_operator.cache.children import Child, Node, Pod, parse_child, parse_node, parse_pod
from rollout_operator.cache.objects import Document, Stored, key_of, parse_stored
from rollout_operator.controller.queue import Key
from rollout_operator.kube.resources import NODES, PODS, STATEFUL_SETS, Resource
from rollout_operator.kueue.quota import Quota, parse_quota
from rollout_operator.kueue.resources import WORKLOADS
from rollout_operator.run.index.places import Places
from rollout_operator.run.index.runs import RunIndex

GONE_MAX = 10_000
Owner = tuple[str, str]
"""Namespace and UID of a run. Both decide: whoever may write in another namespace may name any UID there."""


class Store:
    """All that is known. ``changed`` is called with every key that something happened to."""

    def __init__(self, changed: Callable[[Key], None] = lambda _: None) -> None:
        self._changed = changed
        self.runs = RunIndex()
        self.places = Places()
        self._objects: dict[Key, Stored] = {}
        self._children: dict[Owner, dict[tuple[str, str], Child]] = {}
        self._pods: dict[Owner, dict[str, Pod]] = {}
        self._sets: dict[Owner, set[str]] = {}
        self._nodes: dict[str, Node] = {}
        self._quotas: dict[Key, dict[str, Quota]] = {}
        self._quota_keys: dict[Owner, Key] = {}
        self._runs_by_uid: dict[str, Key] = {}
        self._owners: dict[str, Owner] = {}
        self._written: dict[str, int] = {}
        self._gone: dict[str, None] = {}

    # -- our kinds --------------------------------------------------------------------------------

    def put_object(self, kind: str, live: Document, *, notify: bool = True) -> None:
        """An object of ours as it is now; the answer to our own write is no news."""
        known = self._objects.get(key_of(kind, live["metadata"]))
        if known is not None and known.version >= int(live["metadata"]["resourceVersion"]):
            return
        stored = parse_stored(kind, live)
        before = self._objects.get(stored.key)
        late = before is not None and before.version >= stored.version
        if late or stored.uid in self._gone:
            return
        self._objects[stored.key] = stored
        self._look_up(before, stored)
        self._runs_by_uid[stored.uid] = stored.key
        if notify:
            self._changed(stored.key)

    def drop_object(self, kind: str, live: Document) -> None:
        """An object of ours is gone."""
        meta = live["metadata"]
        key = Key(namespace=meta.get("namespace", ""), name=meta["name"], kind=kind)
        self._bury(meta["uid"])
        if (stored := self._objects.get(key)) is not None and stored.uid == meta["uid"]:
            del self._objects[key]
            self._look_up(stored, None)
        self._runs_by_uid.pop(meta["uid"], None)
        self._changed(key)

    def keep_objects(self, kind: str, namespace: str | None, uids: set[str], version: int) -> None:
        """Forget objects of ours that a list of this version has not shown."""
        for key, stored in list(self._objects.items()):
            inside = key.kind == kind and namespace in {None, key.namespace}
            if inside and stored.uid not in uids and stored.version <= version:
                meta = {"uid": stored.uid, "name": key.name, "namespace": key.namespace}
                self.drop_object(kind, {"metadata": meta})

    def find(self, key: Key) -> Stored | None:
        """An object of ours."""
        return self._objects.get(key)

    def has_begun(self, key: Key) -> bool:
        """Whether an attempt is recorded of which the run's status does not tell yet, and which shall go on."""
        stored = self._objects.get(key)
        if stored is None or stored.deleting or stored.facts.started or stored.facts.finished:
            return False
        told = stored.read_status().get("attempt", 0)
        mine = self.children(key.namespace, stored.uid).values()
        recorded = any(one.expected and one.attempt > told for one in mine)
        return recorded and not json.loads(stored.spec).get("suspend")

    def objects(self) -> Iterator[Stored]:
        """All objects of ours."""
        return iter(self._objects.values())

    def _look_up(self, before: Stored | None, after: Stored | None) -> None:
        self.runs.replace(before, after)
        if (key := self.places.replace(before, after)) is not None:
            self._changed(key)
        if before is not None and _standing(before) != _standing(after):
            self._wake_referrers(before.key)
        elif before is None and after is not None:
            self._wake_referrers(after.key)

    def _wake_referrers(self, key: Key) -> None:
        """By what their specs say: one whose status is being written just now waits as well."""
        for referrer in self.runs.referrers(key):
            self._changed(referrer)

    # -- children, pods, nodes: a Sink of readers ---------------------------------------------------

    def put(self, resource: Resource, live: Document, *, notify: bool = True) -> None:
        """Take in an object that a reader (or, without ``notify``, our own write) has shown."""
        if live["metadata"]["uid"] in self._gone:
            return
        if resource is NODES:
            self._put_node(live)
        elif resource is PODS:
            self._put_pod(live)
        elif resource is WORKLOADS:
            self._put_quota(live, notify=notify)
        else:
            self._put_child(resource, live, notify=notify)

    def learn(self, resource: Resource, live: Document) -> Child | None:
        """Take in the answer to our own write of a child; the child, unless it is newer by now."""
        meta = live["metadata"]
        version = int(meta["resourceVersion"])
        known = self._find_child(resource, meta)
        if known is None or known.version < version:
            self._written[meta["uid"]] = version
        self._put_child(resource, live, notify=False, written=True)
        child = self._find_child(resource, meta)
        return child if child is not None and child.version == version else None

    def is_echo(self, uid: str, version: int) -> bool:
        """Whether a watch tells now of a version that ``learn`` was told; true once."""
        return self._written.get(uid) == version and self._written.pop(uid) == version

    def drop(self, resource: Resource, live: Document) -> None:
        """An object is gone."""
        meta = live["metadata"]
        if resource is NODES:
            self._nodes.pop(meta["name"], None)
            self._touch_node(meta["name"])
            return
        self._bury(meta["uid"])
        if (owner := self._forget(resource, meta)) is not None:
            self._touch(owner)

    def keep_only(
        self, resource: Resource, namespace: str | None, uids: set[str], version: float = inf
    ) -> None:
        """Forget what a list of this version has not shown; what we have made since then is newer."""
        if resource is NODES:
            for node in [one for one in self._nodes.values() if one.uid not in uids]:
                del self._nodes[node.name]
                self._touch_node(node.name)
            return
        for live in list(self._known(resource, namespace)):
            if live.uid not in uids and live.version <= version:
                meta = {"uid": live.uid, "name": live.name, "namespace": live.namespace}
                self.drop(resource, {"metadata": meta})

    def children(self, namespace: str, uid: str) -> Mapping[tuple[str, str], Child]:
        """Children of a run by (kind, name)."""
        return self._children.get((namespace, uid), {})

    def pods(self, namespace: str, uid: str) -> tuple[Pod, ...]:
        """Pods of a run's StatefulSets, by name; what only bears the run's labels is none of them."""
        sets = self._sets.get((namespace, uid), ())
        mine = self._pods.get((namespace, uid), {}).values()
        return tuple(sorted((pod for pod in mine if pod.owner in sets), key=lambda pod: pod.name))

    def quota(self, namespace: str, uid: str) -> Quota | None:
        """The Workload of a run."""
        key = self._quota_keys.get((namespace, uid))
        return self._quotas[key].get(uid) if key else None

    def quotas_of(self, key: Key) -> list[Quota]:
        """Workloads of a run of this name, and of those that had it before and are gone."""
        return list(self._quotas.get(key, {}).values())

    def node(self, name: str) -> Node | None:
        """A node; None when it is not known (or nodes are not watched)."""
        return self._nodes.get(name)

    def _put_child(
        self, resource: Resource, live: Document, *, notify: bool, written: bool = False
    ) -> None:
        known = self._find_child(resource, live["metadata"])
        if known is not None and known.version >= int(live["metadata"]["resourceVersion"]):
            return
        child = parse_child(resource.kind, live, known, written=written)
        if child is None:
            return
        owner = (child.namespace, child.run_uid)
        mine = self._children.setdefault(owner, {})
        before = mine.get((child.kind, child.name))
        if before is not None and before.version >= child.version:
            return
        mine[child.kind, child.name] = child
        self._owners[child.uid] = owner
        if resource is STATEFUL_SETS:
            self._sets.setdefault(owner, set()).add(child.uid)
        if notify:
            self._touch(owner)

    def _find_child(self, resource: Resource, meta: Document) -> Child | None:
        owner = self._owners.get(meta["uid"])
        return self._children.get(owner, {}).get((resource.kind, meta["name"])) if owner else None

    def _put_pod(self, live: Document) -> None:
        pod = parse_pod(live)
        if pod is None:
            return
        owner = (pod.namespace, pod.run_uid)
        mine = self._pods.setdefault(owner, {})
        before = mine.get(pod.uid)
        if before is None or before.version < pod.version:
            mine[pod.uid] = pod
            self._owners[pod.uid] = owner
            self._touch(owner)

    def _put_quota(self, live: Document, *, notify: bool) -> None:
        quota = parse_quota(live)
        if quota is None:
            return
        key = Key(namespace=quota.namespace, name=quota.run)
        owner = (quota.namespace, quota.run_uid)
        before = self.quota(*owner)
        if before is not None and before.version >= quota.version:
            return
        self._quotas.setdefault(key, {})[quota.run_uid] = quota
        self._quota_keys[owner] = key
        self._owners[quota.uid] = owner
        if notify:
            self._touch(owner)

    def _put_node(self, live: Document) -> None:
        node = parse_node(live)
        before = self._nodes.get(node.name)
        if before is not None and before.version >= node.version:
            return
        self._nodes[node.name] = node
        if before is None or (before.unready_since, before.out_of_service) != (
            node.unready_since,
            node.out_of_service,
        ):
            self._touch_node(node.name)

    def _known(self, resource: Resource, namespace: str | None) -> Iterator[Child | Pod | Quota]:
        if resource is WORKLOADS:
            found: Iterator[Child | Pod | Quota] = iter(
                [quota for mine in self._quotas.values() for quota in mine.values()]
            )
        elif resource is PODS:
            found = (pod for mine in self._pods.values() for pod in mine.values())
        else:
            found = (
                child
                for mine in self._children.values()
                for child in mine.values()
                if child.kind == resource.kind
            )
        return (one for one in found if namespace is None or one.namespace == namespace)

    def _forget(self, resource: Resource, meta: Document) -> Owner | None:
        self._written.pop(meta["uid"], None)
        owner = self._owners.pop(meta["uid"], None)
        if owner is None:
            return None
        if resource is PODS:
            self._pods.get(owner, {}).pop(meta["uid"], None)
        elif resource is WORKLOADS:
            self._forget_quota(owner, meta["uid"])
        else:
            place = (resource.kind, meta["name"])
            child = self._children.get(owner, {}).get(place)
            if child is not None and child.uid == meta["uid"]:
                del self._children[owner][place]
        self._prune(owner)
        return owner

    def _forget_quota(self, owner: Owner, uid: str) -> None:
        quota = self.quota(*owner)
        if quota is None or quota.uid != uid:
            return
        key = self._quota_keys.pop(owner)
        del self._quotas[key][quota.run_uid]
        if not self._quotas[key]:
            del self._quotas[key]

    def _prune(self, owner: Owner) -> None:
        """A StatefulSet that is gone is known by its UID until its last pod is."""
        children, pods = self._children.get(owner, {}), self._pods.get(owner, {})
        if owner in self._sets:
            self._sets[owner] &= {one.uid for one in children.values()} | {
                pod.owner for pod in pods.values()
            }
        if not children:
            self._children.pop(owner, None)
        if not pods:
            self._pods.pop(owner, None)
        if not self._sets.get(owner):
            self._sets.pop(owner, None)

    def _touch(self, owner: Owner) -> None:
        namespace, uid = owner
        key = self._runs_by_uid.get(uid)
        if key is None or key.namespace != namespace:
            key = self._quota_keys.get(owner)
        if key is not None:
            self._changed(key)

    def _touch_node(self, name: str) -> None:
        for owner, mine in self._pods.items():
            if any(pod.node == name for pod in mine.values()):
                self._touch(owner)

    def _bury(self, uid: str) -> None:
        """Remember a deleted UID for a while: late news of it is no news."""
        self._gone[uid] = None
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]


def _standing(stored: Stored | None) -> tuple[str, int, bool] | None:
    """What others look at of an object that they name: which it is, its spec, and whether it is over."""
    return None if stored is None else (stored.uid, stored.generation, stored.facts.finished)

"""What the operator remembers of the cluster: its objects as compact bytes, their children, pods and nodes as scalars.

Fed by the watches and by the answers to our own writes; an older version never replaces a newer one.
Deletions are final by UID. Every change names the key that must be looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType

from rollout_operator.cache.children import Child, Node, Pod, parse_child, parse_node, parse_pod
from rollout_operator.cache.facts import References
from rollout_operator.cache.index import ObjectIndex
from rollout_operator.cache.objects import Document, Stored, key_of, parse_stored
from rollout_operator.controller.queue import Key
from rollout_operator.kube.resources import NODES, PODS, STATEFUL_SETS, Resource

GONE_MAX = 10_000
Owner = tuple[str, str]
"""Namespace and UID of an object of ours. Both decide: whoever may write in another namespace may name any UID there."""


NO_REFERENCES: Mapping[str, References] = MappingProxyType({})


class Store:
    """All that is known. ``changed`` is called with every key that something happened to.

    ``references``: by kind, what its specs name; objects of these kinds are looked up by it, and woken. ``works``: the
    kind whose objects are counted.
    """

    def __init__(
        self,
        changed: Callable[[Key], None] = lambda _: None,
        references: Mapping[str, References] = NO_REFERENCES,
        works: str = "",
    ) -> None:
        self._changed = changed
        self._references = references
        self.index = ObjectIndex(works)
        self._objects: dict[Key, Stored] = {}
        self._children: dict[Owner, dict[tuple[str, str], Child]] = {}
        self._pods: dict[Owner, dict[str, Pod]] = {}
        self._sets: dict[Owner, set[str]] = {}
        self._nodes: dict[str, Node] = {}
        self._by_uid: dict[str, Key] = {}
        self._owners: dict[str, Owner] = {}
        self._written: dict[str, int] = {}
        self._gone: dict[str, None] = {}

    # -- our kinds --------------------------------------------------------------------------------

    def put_object(self, kind: str, live: Document, *, notify: bool = True) -> None:
        """An object of ours as it is now; the answer to our own write is no news."""
        known = self._objects.get(key_of(kind, live["metadata"]))
        if known is not None and known.version >= int(live["metadata"]["resourceVersion"]):
            return
        stored = parse_stored(kind, live, self._references.get(kind))
        before = self._objects.get(stored.key)
        late = before is not None and before.version >= stored.version
        if late or stored.uid in self._gone:
            return
        self._objects[stored.key] = stored
        self._look_up(before, stored)
        self._by_uid[stored.uid] = stored.key
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
        self._by_uid.pop(meta["uid"], None)
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

    def objects(self) -> Iterator[Stored]:
        """All objects of ours."""
        return iter(self._objects.values())

    def _look_up(self, before: Stored | None, after: Stored | None) -> None:
        self._index(before, after)
        self._wake_sweep(before, after)
        if before is not None and _standing(before) != _standing(after):
            self._wake_referrers(before.key)
        elif before is None and after is not None:
            self._wake_referrers(after.key)

    def _index(self, before: Stored | None, after: Stored | None) -> None:
        """An object of ours has come, changed or gone; both are of one key."""
        one = after or before
        if one is not None and one.key.kind in self._references:
            self.index.replace(before, after)

    def _wake_sweep(self, before: Stored | None, after: Stored | None) -> None:
        """Whoever made an object of ours hears of its coming, its end and its going."""
        one = after or before
        if one is None or not one.facts.sweep or _standing(before) == _standing(after):
            return
        if (key := self._key_of((one.key.namespace, one.facts.sweep))) is not None:
            self._changed(key)

    def _wake_referrers(self, key: Key) -> None:
        """By what their specs say: one whose status is being written just now waits as well."""
        for referrer in self.index.referrers(key):
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
        """Children of an object by (kind, name)."""
        return self._children.get((namespace, uid), {})

    def pods(self, namespace: str, uid: str) -> tuple[Pod, ...]:
        """Pods of an object's StatefulSets, by name; what only bears its labels is none of them."""
        sets = self._sets.get((namespace, uid), ())
        mine = self._pods.get((namespace, uid), {}).values()
        return tuple(sorted((pod for pod in mine if pod.owner in sets), key=lambda pod: pod.name))

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
        if notify and _is_news(before, child):
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

    def _known(self, resource: Resource, namespace: str | None) -> Iterator[Child | Pod]:
        if resource is PODS:
            found: Iterator[Child | Pod] = (
                pod for mine in self._pods.values() for pod in mine.values()
            )
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
        else:
            place = (resource.kind, meta["name"])
            child = self._children.get(owner, {}).get(place)
            if child is not None and child.uid == meta["uid"]:
                del self._children[owner][place]
        self._prune(owner)
        return owner

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
        if (key := self._key_of(owner)) is not None:
            self._changed(key)

    def _key_of(self, owner: Owner) -> Key | None:
        """Who must be looked at when something of this owner's changes."""
        namespace, uid = owner
        key = self._by_uid.get(uid)
        return key if key is not None and key.namespace == namespace else None

    def _touch_node(self, name: str) -> None:
        for owner, mine in self._pods.items():
            if any(pod.node == name for pod in mine.values()):
                self._touch(owner)

    def _bury(self, uid: str) -> None:
        """Remember a deleted UID for a while: late news of it is no news."""
        self._gone[uid] = None
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]


def _is_news(before: Child | None, child: Child) -> bool:
    """An autoscaler notes figures every few seconds: only what it says of them is news."""
    return before is None or child.answer is None or replace(before, version=child.version) != child


def _standing(stored: Stored | None) -> tuple[str, int, bool] | None:
    """What others look at of an object that they name: which it is, its spec, and whether it is over."""
    return None if stored is None else (stored.uid, stored.generation, stored.facts.finished)

"""Makes one child what its manifest wants: the only exit to the API server for what an object of ours is made of.

Server-side apply under one field manager. A child that is made must not be there as somebody else's
(no force); a child or pod that is changed or deleted must be the very one that was seen (uid and
resourceVersion), else it is looked at again. Fields that others keep
changing are taken back three times in ten minutes, then the owner says so.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollout_api import GROUP, names
from rollout_operator.cache.children import Child, Pod, is_drifted, parse_child
from rollout_operator.cache.store import Store
from rollout_operator.errors import Conflict, FieldConflict, NotFound
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.managed_fields import (
    controller_uid,
    differences,
    owned_digest,
    writer_of,
)
from rollout_operator.kube.resources import PODS, resource_of

log = logging.getLogger(__name__)

Manifest = dict[str, Any]
ACCEPTED_MAX = 100_000
REVERTS_MAX = 3
REVERT_SECONDS = 600.0
REVERTS_KEPT_MAX = 10_000


class Owner(Protocol):
    """An object of ours whose children are written, and what they may be."""

    @property
    def kind(self) -> str:
        """The owner's kind."""
        ...

    @property
    def namespace(self) -> str:
        """Where the owner and all of its children are."""
        ...

    @property
    def uid(self) -> str:
        """The owner's UID."""
        ...

    def check(self, manifest: Manifest) -> None:
        """Raises ChildRefused for a manifest that must not leave as this owner's."""
        ...


@dataclass(slots=True, kw_only=True)
class ApplySet:
    """Owns what only a writer remembers: digests that the server made of our fields, fields it took back.

    ``believes`` says whether a child that was found, and that nobody here has made, may be taken for ours.
    """

    client: KubeClient
    store: Store
    believes: Callable[[Child], bool]
    clock: Callable[[], float] = time.monotonic
    accepted: dict[str, str] = field(default_factory=dict)
    _reverts: dict[tuple[str, str], deque[float]] = field(default_factory=dict)

    async def apply(
        self, manifest: Manifest, child: Child | None, owner: Owner, *, repair: bool
    ) -> None:
        """Write a child. ``repair``: it was made from this manifest, and is written if it lacks any of it."""
        if child is None:
            await self.apply_new(manifest, owner)
            return
        drifted = repair and is_drifted(child, self.accepted)
        if drifted and not await self._must_repair(manifest, child):
            return
        meta = {**manifest["metadata"], "uid": child.uid, "resourceVersion": str(child.version)}
        await self._send({**manifest, "metadata": meta}, owner, new=False)

    async def apply_new(self, manifest: Manifest, owner: Owner) -> None:
        """Make a child. One of that name that is there is never taken over: ours is looked at again first."""
        try:
            await self._send(manifest, owner, new=True)
        except Conflict:
            await self._meet(manifest, owner)
            raise

    async def merge(self, changes: Manifest, child: Child) -> None:
        """Change some fields of a child as it was seen; all else of it stays."""
        seen = {"uid": child.uid, "resourceVersion": str(child.version)}
        resource = resource_of(child.kind)
        answer = await self.client.merge(
            {**changes, "metadata": {**changes.get("metadata", {}), **seen}},
            resource,
            child.namespace,
            child.name,
            manager=names.MANAGER_CHILDREN,
        )
        self.store.learn(resource, answer)

    async def delete(self, child: Child) -> None:
        """Delete a child as it was seen."""
        await self.client.delete(
            resource_of(child.kind),
            child.namespace,
            child.name,
            uid=child.uid,
            resource_version=str(child.version),
        )

    async def delete_pod(self, pod: Pod, *, force: bool) -> None:
        """Delete a pod as it was seen: one that has changed since then is looked at again."""
        await self.client.delete(
            PODS,
            pod.namespace,
            pod.name,
            uid=pod.uid,
            resource_version=str(pod.version),
            grace_seconds=0 if force else None,
        )

    async def _send(self, manifest: Manifest, owner: Owner, *, new: bool) -> None:
        owner.check(manifest)
        resource, manager = resource_of(manifest["kind"]), names.MANAGER_CHILDREN
        if new:
            answer = await self.client.apply_new(manifest, resource, manager=manager)
        else:
            answer = await self.client.apply(manifest, resource, manager=manager, force=True)
        child = self.store.learn(resource, answer)
        owned = child.owned if child is not None else owned_digest(answer)
        if owned != answer["metadata"].get("annotations", {}).get(names.ANNOTATION_APPLIED):
            self._accept(answer["metadata"]["uid"], owned)

    async def _meet(self, manifest: Manifest, owner: Owner) -> None:
        """Learn what is there already. Raises FieldConflict when it is not this owner's, or is not believed."""
        resource, name = resource_of(manifest["kind"]), manifest["metadata"]["name"]
        try:
            live = await self.client.get(resource, owner.namespace, name)
        except NotFound:
            return
        what = f"{manifest['kind']} {name}"
        if controller_uid(live["metadata"], GROUP, owner.kind) != owner.uid:
            message = (
                f"{what} exists and is not this {owner.kind}'s; delete it, or give the "
                f"{owner.kind} another name"
            )
            raise FieldConflict(message, 30.0)
        child = parse_child(resource.kind, live)
        if child is None or not self.believes(child):
            message = f"{what} exists and was not made by this operator; delete it"
            raise FieldConflict(message, 30.0)
        self.store.put(resource, live)

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


def _comparable(manifest: Manifest) -> Mapping[str, Any]:
    """A manifest without its seal and preconditions."""
    meta = {k: v for k, v in manifest["metadata"].items() if k not in ("uid", "resourceVersion")}
    annotations = {
        key: text
        for key, text in meta.get("annotations", {}).items()
        if key != names.ANNOTATION_APPLIED
    }
    return {**manifest, "metadata": {**meta, "annotations": annotations}}

"""Follows the optional kinds that endpoints may want objects of: KEDA's ScaledObject, the Gateway API's HTTPRoute."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.queue import KeyQueue
from rollout_operator.endpoint.inputs import KIND
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.following import Follower
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.resources import OPTIONAL_CHILDREN, SCALED_OBJECTS, Resource


@dataclass(slots=True, kw_only=True)
class OptionalKinds:
    """A follower for each of them; endpoints are woken when one comes or goes. A kind that goes takes its objects with it."""

    client: KubeClient
    store: Store
    queue: KeyQueue
    build_readers: Callable[[Resource], Iterable[Informer]]
    followers: tuple[Follower, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Followers begin with ``run``, which is the caller's."""
        self.followers = tuple(map(self._follow, OPTIONAL_CHILDREN))

    def served(self) -> set[str]:
        """Kinds that the cluster has, and whose objects are known."""
        return {one.resource.kind for one in self.followers if one.served}

    def _follow(self, resource: Resource) -> Follower:
        return Follower(
            client=self.client,
            resource=resource,
            build_readers=partial(self.build_readers, resource),
            wanted=lambda: any(_wants(one, resource) for one in self._endpoints()),
            appeared=self._wake,
            vanished=partial(self._lose, resource),
        )

    def _endpoints(self) -> Iterator[Stored]:
        return (one for one in self.store.objects() if one.key.kind == KIND)

    def _wake(self) -> None:
        for one in list(self._endpoints()):
            self.queue.put(one.key)

    def _lose(self, resource: Resource) -> None:
        self.store.keep_only(resource, None, set())
        self._wake()


def _wants(stored: Stored, resource: Resource) -> bool:
    """Whether an endpoint as it is written asks for an object of this kind."""
    document = json.loads(stored.spec)
    if resource is SCALED_OBJECTS:
        return "keda" in (document.get("scaling") or {})
    return bool(document.get("route"))

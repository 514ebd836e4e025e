"""Who a viewer is, and what they may: the cluster's answers, remembered for a minute at most. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar

from rollout.cluster.kinds import GROUP, Kind
from rollout.errors import KubeError

T = TypeVar("T")
SECONDS_MAX = 60.0
"""How long an answer is believed: what is taken away from somebody is gone after so long."""
REFUSED_SECONDS_MAX = 5.0
"""How long a token that nobody knows, or a right that is missing, is: whoever is given one need not wait."""
REMEMBERED_MAX = 10_000
TOKEN_CHARACTERS_MAX = 32_768


class Asks(Protocol):
    """Whoever can ask the API server for a review (``rollout.cluster.client.Cluster``)."""

    def review(self, group: str, kind: str, spec: dict[str, Any], /) -> dict[str, Any]:
        """The ``status`` of the answer. Raises KubeError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Somebody whom the cluster knows, as it names them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource. An empty ``namespace`` is all of them, an empty ``name`` any object."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    group: str = GROUP

    def __str__(self) -> str:
        """As people say it: ``list pods in namespace team``."""
        what = "/".join(filter(None, (self.resource, self.subresource)))
        named = f" {self.name}" if self.name else ""
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {what}{named} {where}"


def reads_one(kind: Kind, namespace: str, name: str) -> Right:
    """To see one object of ours."""
    return Right(verb="get", resource=kind.plural, namespace=namespace, name=name)


def lists_kind(kind: Kind, namespace: str) -> Right:
    """To see which objects of a kind of ours there are."""
    return Right(verb="list", resource=kind.plural, namespace=namespace)


def changes(kind: Kind, namespace: str, name: str) -> Right:
    """To suspend a run or a sweep, or to take an endpoint back."""
    return Right(verb="patch", resource=kind.plural, namespace=namespace, name=name)


def lists(resource: str, namespace: str) -> Right:
    """To see pods or events."""
    return Right(verb="list", resource=resource, namespace=namespace, group="")


def reads_inside(namespace: str) -> Right:
    """To see what lies in a run's pods: prompts, completions, rewards. Whoever edits a namespace has it, a viewer has not."""
    return Right(verb="create", resource="pods", subresource="exec", namespace=namespace, group="")


class Reviews:
    """The cluster's answers about viewers and their rights."""

    def __init__(self, cluster: Asks, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._viewers: _Remembered[Viewer | None] = _Remembered(clock)
        self._rights: _Remembered[bool] = _Remembered(clock)

    def identify(self, token: str) -> Viewer | None:
        """Who holds this bearer token; None for one that the cluster does not know. Raises KubeError where it cannot be asked."""
        if not (0 < len(token) <= TOKEN_CHARACTERS_MAX and token.isascii() and token.isprintable()):
            return None
        key = sha256(token.encode()).digest()
        return self._viewers.find(key, lambda: self._ask_who(token))

    def may(self, viewer: Viewer, right: Right) -> bool:
        """Whether the viewer has the right. Raises KubeError where the cluster cannot be asked."""
        return self._rights.find((viewer, right), lambda: self._ask_right(viewer, right))

    def _ask_who(self, token: str) -> Viewer | None:
        status = self._ask("authentication.k8s.io", "TokenReview", {"token": token})
        user = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return None
        extra = user.get("extra") or {}
        return Viewer(
            name=user["username"],
            uid=user.get("uid") or "",
            groups=tuple(user.get("groups") or ()),
            extra=tuple((name, tuple(values)) for name, values in sorted(extra.items())),
        )

    def _ask_right(self, viewer: Viewer, right: Right) -> bool:
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": right.resource,
            "subresource": right.subresource,
            "namespace": right.namespace,
            "name": right.name,
        }
        spec = {
            "user": viewer.name,
            "uid": viewer.uid,
            "groups": list(viewer.groups),
            "extra": {name: list(values) for name, values in viewer.extra},
            "resourceAttributes": {name: value for name, value in attributes.items() if value},
        }
        status = self._ask("authorization.k8s.io", "SubjectAccessReview", spec)
        return status.get("allowed") is True

    def _ask(self, group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._cluster.review(group, kind, spec)
        except KubeError as error:
            raise KubeError(
                f"the cluster could not be asked who you are and what you may ({kind}): {error}; the console's own"
                " account needs the ClusterRole system:auth-delegator"
            ) from error


class _Remembered(Generic[T]):
    """Answers by key: an affirmative one for SECONDS_MAX, another for REFUSED_SECONDS_MAX, the least used go."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()

    def find(self, key: Hashable, ask: Callable[[], T]) -> T:
        now = self._clock()
        with self._lock:
            known = self._known.get(key)
            if known is not None and now < known[0]:
                self._known.move_to_end(key)
                return known[1]
        answer = ask()
        lasts = SECONDS_MAX if answer else REFUSED_SECONDS_MAX
        with self._lock:
            self._known[key] = (now + lasts, answer)
            self._known.move_to_end(key)
            while len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)
        return answer

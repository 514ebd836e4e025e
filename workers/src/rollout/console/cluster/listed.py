"""Objects of a cluster as lines: read by the console's own account, kept for seconds, and cut to what a viewer may list."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rollout.cluster.kinds import Kind
from rollout.cluster.objects import Object
from rollout.console.cluster.reviews import Reviews, Viewer, lists_kind
from rollout.errors import KubeError

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster

PAGE_ROWS = 50
LIST_SECONDS = 5.0
"""How long a list is shown again before the cluster is asked for another one: pages of many people are one list."""
NAMESPACES_MAX = 200
"""Of those with objects so many are asked about for somebody who may not list all; a page says where there are more."""


class ListedLine(Protocol):
    """What every line of a list has."""

    @property
    def namespace(self) -> str:
        """Where the object is."""
        ...

    @property
    def name(self) -> str:
        """What it is called there."""
        ...

    @property
    def created_at(self) -> float | None:
        """When it was made (Unix seconds)."""
        ...


L = TypeVar("L", bound=ListedLine)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[L]):
    """A page of a list. ``namespaces`` are those with objects that the viewer may list; ``said`` what was left out."""

    lines: tuple[L, ...]
    number: int
    page: int
    num_pages: int
    namespaces: tuple[str, ...]
    said: str


class ObjectList(Generic[L]):
    """All objects of a kind that the console's account sees, in ``namespaces`` or (none named) everywhere. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Sequence[str],
        kind: Kind,
        shape: Callable[[Object], L],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespaces, self._clock = cluster, tuple(namespaces), clock
        self.kind, self._shape = kind, shape
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._lines: tuple[L, ...] = ()

    def lines(self) -> tuple[L, ...]:
        """The objects, read again where the list is too old. Raises KubeError."""
        with self._lock:
            now = self._clock()
            if self._read_at is None or now - self._read_at >= LIST_SECONDS:
                self._lines = tuple(map(self._shape, self._read()))
                self._read_at = now
            return self._lines

    def _read(self) -> Iterator[Object]:
        try:
            if not self._namespaces:
                yield from self._cluster.each(self.kind, everywhere=True)
            for namespace in self._namespaces:
                yield from self._cluster.within(namespace).each(self.kind)
        except KubeError as error:
            raise KubeError(
                f"the console's own account could not list {self.kind.plural}: {error}"
            ) from error


def permitted(
    reviews: Reviews, viewer: Viewer, kind: Kind, lines: Iterable[L]
) -> tuple[tuple[L, ...], str]:
    """The objects that a viewer may list, and what was not asked. Raises KubeError."""
    known = tuple(lines)
    if reviews.may(viewer, lists_kind(kind, "")):
        return known, ""
    namespaces = sorted({line.namespace for line in known})
    asked = namespaces[:NAMESPACES_MAX]
    open_to = {one for one in asked if reviews.may(viewer, lists_kind(kind, one))}
    said = ""
    if len(namespaces) > NAMESPACES_MAX:
        said = f"Only {NAMESPACES_MAX} namespaces were asked whether you may list them: name yours."
    return tuple(line for line in known if line.namespace in open_to), said


def cut(lines: Sequence[L], *, name: str, page: int, by_name: bool, said: str = "") -> ListPage[L]:
    """A page of those whose name has ``name`` in it, the newest first. Pure."""
    found = [line for line in lines if name.lower() in line.name.lower()]
    if by_name:
        found.sort(key=lambda line: (line.name, line.namespace))
    else:
        found.sort(key=lambda line: (-(line.created_at or 0.0), line.namespace, line.name))
    num_pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(max(1, page), num_pages)
    return ListPage(
        lines=tuple(found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]),
        number=len(found),
        page=page,
        num_pages=num_pages,
        namespaces=tuple(sorted({line.namespace for line in lines})),
        said=said,
    )

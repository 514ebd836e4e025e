"""What the API server's audit log says of one user: every write, and when it began and ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WRITES = ("create", "update", "patch", "delete", "deletecollection")
NEVER_COUNTED = ("leases", "subjectaccessreviews", "tokenreviews", "selfsubjectaccessreviews")
NO_CHILDREN = (*NEVER_COUNTED, "events", "controllerrevisions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that has ended; ``resource`` is written ``rolloutruns/status`` for a subresource."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    began: float
    ended: float

    @property
    def wrote(self) -> bool:
        """Whether it changed or confirmed an object; Leases and reviews are no work."""
        plain = self.resource.partition("/")[0]
        return self.verb in WRITES and self.code < 300 and plain not in NEVER_COUNTED

    @property
    def made_child(self) -> bool:
        """Whether an object came to be that is a child of something (a revision or an event is none)."""
        return self.wrote and self.code == 201 and self.resource not in NO_CHILDREN


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The writes of one contender from its first to its last."""

    writes: int
    children: int
    began: float
    last_child: float
    last_write: float

    @property
    def writes_per_second(self) -> float:
        """Over the whole window."""
        return self.writes / max(1e-9, self.last_write - self.began)

    @property
    def children_per_second(self) -> float:
        """Until the last child."""
        return self.children / max(1e-9, self.last_child - self.began)


class Tail:
    """Follows a log from where it ends now."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size
        self._rest = b""

    def read(self, *users: str) -> list[Call]:
        """Calls of these users since the last look."""
        with self._log.open("rb") as file:
            file.seek(self._offset)
            found = file.read()
        self._offset += len(found)
        *lines, self._rest = (self._rest + found).split(b"\n")
        marks = [f'"username":"{user}"'.encode() for user in users]
        return [_parse(json.loads(one)) for one in lines if any(mark in one for mark in marks)]


def window(calls: Iterable[Call]) -> Window:
    """From the first write to the last. Raises ValueError when there is none."""
    wrote = [call for call in calls if call.wrote]
    children = [call for call in wrote if call.made_child]
    return Window(
        writes=len(wrote),
        children=len(children),
        began=min(call.began for call in wrote),
        last_child=max((call.ended for call in children), default=0.0),
        last_write=max(call.ended for call in wrote),
    )


def count_by_verb(calls: Iterable[Call]) -> Counter[str]:
    """Requests by verb, resource and answer, Leases and watches left out."""
    return Counter(
        f"{call.verb} {call.resource} {call.code}"
        for call in calls
        if call.verb != "watch" and call.resource not in NEVER_COUNTED
    )


def _parse(entry: dict[str, Any]) -> Call:
    target = entry.get("objectRef", {})
    sub = target.get("subresource", "")
    return Call(
        user=entry["user"]["username"],
        verb=entry["verb"],
        resource=target.get("resource", "") + (f"/{sub}" if sub else ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=entry.get("responseStatus", {}).get("code", 0),
        began=_seconds(entry["requestReceivedTimestamp"]),
        ended=_seconds(entry["stageTimestamp"]),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

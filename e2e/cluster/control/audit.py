"""Reads a control plane's audit log: who called what, as the API server itself saw it."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

DECISION = "authorization.k8s.io/decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCall:
    """One request that has ended, or a watch that has begun; `subresource` and names are empty where there is none.

    `permitted`: the authorizer let it pass; what admission or the object's state made of it is in `status`.
    """

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    status: int
    client: str
    permitted: bool = True


def read(log: Path, start: int = 0) -> Iterator[AuditedCall]:
    """Every call of a log that is still being written, from a byte on; a last line without its end is left out."""
    with log.open("rb") as lines:
        lines.seek(start)
        for line in lines:
            if line.endswith(b"\n"):
                yield _parse(json.loads(line))


def count_by_verb(calls: Iterable[AuditedCall], user: str) -> Counter[tuple[str, str]]:
    """How often a user used each (verb, resource); a subresource is written `pods/status`."""
    mine = (call for call in calls if call.user == user)
    return Counter(
        (call.verb, "/".join(filter(None, (call.resource, call.subresource)))) for call in mine
    )


def _parse(entry: dict) -> AuditedCall:
    target = entry.get("objectRef", {})
    return AuditedCall(
        user=entry["user"].get("username", ""),
        verb=entry["verb"],
        group=target.get("apiGroup", ""),
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        status=entry.get("responseStatus", {}).get("code", 0),
        client=entry.get("userAgent", ""),
        permitted=entry.get("annotations", {}).get(DECISION) != "forbid",
    )

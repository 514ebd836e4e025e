"""Runs that this one starts from: which they are, what they hand on, and whether they are there yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollout_api.checks.pods.allowed import allows_place, allows_root, is_plain
from rollout_api.conditions import Reason
from rollout_api.places import namespace_place
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.render.volumes import CLAIM, claim_name

OBJECTS = "/blake3/"
"""Below a place: its objects."""
STRAY_SHOWN_MAX = 200
RUNS_AHEAD_MAX = 256
"""Runs that are looked at for whether they wait for the one that asks: a chain may be as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Another run whose result is wanted. ``uri``: where the model of that snapshot lies, when there is one.

    ``Far``: it waits behind more runs than are looked at. ``stray``: what it names in a bucket and is not to be read.
    """

    name: str
    snapshot: str = "Latest"
    state: Literal["Missing", "Waiting", "Far", "Failed", "Succeeded", "Cycle"]
    uri: str | None = None
    claim: str = ""
    uid: str = ""
    stray: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """Where a run may read what others of its namespace have handed on.

    ``roots``: the ``storage.uri`` of the run and of its runtime; ``lists``: what the runtime allows besides; ``volume``: the
    claim of the run's own volume, which its coordinator alone mounts.
    """

    namespace: str
    roots: tuple[str, ...] = ()
    lists: Allowed
    volume: str = ""

    def holds(self, uri: str, uid: str) -> bool:
        """Whether an object lies where the run of this namespace and UID keeps its objects."""
        place, marked, _ = uri.rpartition(OBJECTS)
        own = f"/{self.namespace}/{uid}"
        if not marked or not uid or not is_plain(uri) or not place.endswith(own):
            return False
        root = place.removesuffix(own)
        known = {namespace_place(one, self.namespace) for one in self.roots}
        return namespace_place(root, self.namespace) in known or allows_root(
            root, self.lists, self.namespace
        )

    def allows(self, place: str) -> bool:
        """Whether a place of no run of this cluster may be read: one of the namespace's, or one that the runtime names."""
        own = (f"{namespace_place(one, self.namespace)}/" for one in self.roots)
        below = is_plain(place) and place.startswith(tuple(own))
        return below or allows_place(place, self.lists, self.namespace)


def keep_own(upstreams: Iterable[Upstream], readable: Readable) -> tuple[Upstream, ...]:
    """A status says where a model lies, and a run's own pods write it: what is not the run's own is not read."""
    return tuple(
        one
        if one.uri is None or one.claim or readable.holds(one.uri, one.uid)
        else replace(one, uri=None, stray=one.uri)
        for one in upstreams
    )


def handed_on(name: str, uid: str, snapshot: str, status: Mapping[str, Any]) -> Upstream:
    """The model that a run which has succeeded offers. A volume is taken only when it is that run's own."""
    wanted = {"Latest": "lastSnapshot", "Best": "best"}.get(snapshot, "")
    uri = (status.get(wanted) or {}).get("modelURI")
    if uri is None or not uri.startswith(CLAIM):
        return Upstream(name=name, snapshot=snapshot, state="Succeeded", uri=uri, uid=uid)
    claim = claim_name(name, uid)
    own = uri.startswith(f"{CLAIM}{claim}/")
    return Upstream(
        name=name,
        snapshot=snapshot,
        state="Succeeded",
        uri=uri if own else None,
        claim=claim if own else "",
    )


def check_upstreams(upstreams: Iterable[Upstream]) -> Blocked | None:
    """Other runs come first."""
    return next((gate for one in upstreams if (gate := _gate(one)) is not None), None)


def _gate(one: Upstream) -> Blocked | None:
    if one.stray:
        return Blocked(reason=Reason.NOT_ALLOWED, message=_of_stray(one))
    if one.state == "Succeeded":
        return None if one.uri is not None else _nothing_handed_on(one)
    reason, message, options = _STATES[one.state]
    return Blocked(reason=reason, message=message.format(name=one.name), **options)


_STATES: Mapping[str, tuple[Reason, str, dict[str, Any]]] = {
    "Cycle": (Reason.INVALID_SPEC, "fromRun {name}: the runs wait for each other in a circle", {}),
    "Missing": (
        Reason.REFERENCE_NOT_FOUND,
        "fromRun {name}: there is no such run in this namespace",
        {"retry_seconds": 10},
    ),
    "Failed": (
        Reason.WAITING_FOR_RUN,
        "run {name} has failed: waits for one that finishes well",
        {},
    ),
    "Waiting": (Reason.WAITING_FOR_RUN, "waits for run {name}", {"stalled": False}),
    "Far": (
        Reason.WAITING_FOR_RUN,
        (
            f"waits for run {{name}}, behind more than {RUNS_AHEAD_MAX} others; whether those wait "
            "in a circle is not looked at: if none of them is at work, start one from a model's uri"
        ),
        {"stalled": False},
    ),
}


def _of_stray(one: Upstream) -> str:
    return (
        f"fromRun {one.name}: its status names a model at {one.stray[:STRAY_SHOWN_MAX]!r}, expected one below "
        f"<storage.uri>/<namespace>/{one.uid}/; copy it there, or let the platform add its bucket to the "
        "runtime's spec.allowed.storage; nothing that is another run's or namespace's is read"
    )


def _nothing_handed_on(one: Upstream) -> Blocked:
    message = (
        f"run {one.name} has finished and has handed on no model {one.snapshot!r}; there is "
        "Latest where the log of its coordinator names no trouble, and Best where an "
        "evaluation selects; a run with Postgres needs storage.uri for it"
    )
    return Blocked(reason=Reason.REFERENCE_NOT_FOUND, message=message)


def from_runs(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every ``fromRun`` of a spec."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "fromRun" and isinstance(value, dict):
                yield value
            elif isinstance(value, dict | list):
                yield from from_runs(value)
    elif isinstance(document, list):
        for item in document:
            yield from from_runs(item)


def wanted_model(reference: Mapping[str, Any]) -> tuple[str, str]:
    """Run and snapshot of a ``fromRun``."""
    return reference.get("name", ""), reference.get("snapshot") or "Latest"


def with_uris(document: Any, uris: Mapping[tuple[str, str], str]) -> Any:
    """A spec in which every ``fromRun`` has become the place of that run's model, by name and snapshot."""
    if isinstance(document, dict):
        found = document.get("fromRun")
        rest = {key: with_uris(value, uris) for key, value in document.items() if key != "fromRun"}
        if isinstance(found, dict) and (uri := uris.get(wanted_model(found))):
            return {**rest, "uri": uri}
        return {**rest, **({"fromRun": found} if found is not None else {})}
    return [with_uris(item, uris) for item in document] if isinstance(document, list) else document

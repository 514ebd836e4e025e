"""Runs that this one starts from: which they are, what they hand on, and whether they are there yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout_api.conditions import Reason
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.render.volumes import CLAIM, claim_name

RUNS_AHEAD_MAX = 256
"""Runs that are looked at for whether they wait for the one that asks: a chain may be as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Another run whose result is wanted. ``uri``: where the model of that snapshot lies, when there is one.

    ``Far``: it waits behind more runs than are looked at.
    """

    name: str
    snapshot: str = "Latest"
    state: Literal["Missing", "Waiting", "Far", "Failed", "Succeeded", "Cycle"]
    uri: str | None = None
    claim: str = ""


def handed_on(name: str, uid: str, snapshot: str, status: Mapping[str, Any]) -> Upstream:
    """The model that a run which has succeeded offers. A volume is taken only when it is that run's own."""
    wanted = {"Latest": "lastSnapshot", "Best": "best"}.get(snapshot, "")
    uri = (status.get(wanted) or {}).get("modelUri")
    if uri is None or not uri.startswith(CLAIM):
        return Upstream(name=name, snapshot=snapshot, state="Succeeded", uri=uri)
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
    for one in upstreams:
        if one.state == "Cycle":
            message = f"fromRun {one.name}: the runs wait for each other in a circle"
            return Blocked(reason=Reason.INVALID_SPEC, message=message)
        if one.state == "Missing":
            message = f"fromRun {one.name}: there is no such run in this namespace"
            return Blocked(reason=Reason.REFERENCE_NOT_FOUND, message=message, retry_seconds=10)
        if one.state == "Failed":
            message = f"run {one.name} has failed; this run waits for one that finishes well"
            return Blocked(reason=Reason.WAITING_FOR_RUN, message=message)
        if one.state == "Waiting":
            message = f"waits for run {one.name}"
            return Blocked(reason=Reason.WAITING_FOR_RUN, message=message, stalled=False)
        if one.state == "Far":
            message = (
                f"waits for run {one.name}, behind more than {RUNS_AHEAD_MAX} others; whether those wait "
                "in a circle is not looked at: if none of them is at work, start one from a model's uri"
            )
            return Blocked(reason=Reason.WAITING_FOR_RUN, message=message, stalled=False)
        if one.uri is None:
            message = (
                f"run {one.name} has finished and has handed on no model {one.snapshot!r}; there is "
                "Latest where the log of its coordinator names no trouble, and Best where an "
                "evaluation selects; a run with Postgres needs storage.uri for it"
            )
            return Blocked(reason=Reason.REFERENCE_NOT_FOUND, message=message)
    return None


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

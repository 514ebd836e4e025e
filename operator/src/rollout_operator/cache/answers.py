"""What others say of a child that they act on: an autoscaler's metric, a Gateway's verdict on a route. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_api.visible import visible

Document = Mapping[str, Any]
WORDS_MAX = 400
_ASKED: Mapping[str, tuple[str, ...]] = {
    "HorizontalPodAutoscaler": ("AbleToScale", "ScalingActive"),
    "ScaledObject": ("Ready",),
    "HTTPRoute": ("Accepted", "ResolvedRefs"),
}
"""Conditions of each kind that must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``given``: everybody who acts on the child has said something. ``trouble``: the first thing that is wrong, for people."""

    given: bool
    trouble: str = ""


def read_answer(kind: str, live: Document) -> Answer | None:
    """None for kinds of which nobody says anything."""
    if kind not in _ASKED:
        return None
    status = live.get("status") or {}
    sets = list(_of_parents(live, status)) if kind == "HTTPRoute" else [status.get("conditions")]
    wrong = (words for one in sets for words in _wrong(one or (), _ASKED[kind]))
    return Answer(given=all(sets), trouble=visible(next(wrong, ""))[:WORDS_MAX])


def _of_parents(live: Document, status: Document) -> Iterator[list[Document] | None]:
    """The conditions of each Gateway that is named; None of one that has said nothing."""
    said = status.get("parents") or ()
    for wanted in (live.get("spec") or {}).get("parentRefs") or ():
        mine = [one for one in said if _name(one.get("parentRef"), live) == _name(wanted, live)]
        yield [condition for one in mine for condition in one.get("conditions") or ()] or None


def _name(reference: Document | None, live: Document) -> tuple[Any, ...]:
    """Namespace, name and listener of a Gateway; one without a namespace is in the route's."""
    found = reference or {}
    own = live["metadata"].get("namespace")
    return found.get("namespace") or own, found.get("name"), found.get("sectionName")


def _wrong(conditions: Iterable[Document], asked: tuple[str, ...]) -> Iterator[str]:
    for one in conditions:
        if one.get("type") in asked and one.get("status") == "False":
            yield f"{one.get('reason', '')}: {one.get('message', '')}"

"""Fields that stood elsewhere in an earlier schema, so that a document written for it is told where they went.

The API server drops what its schema does not know, so a stored object does not show them: files do, and
the records of run attempts that an earlier version rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Moved:
    """A field by the end of its old path, without list indices; the field beside it that replaces it; how to write that."""

    was: tuple[str, ...]
    field: str
    now: str

    def move(self, document: dict[str, Any]) -> None:
        """Put what ``document``, the object that holds it, says at the old place to the new one."""
        value = document.pop(self.was[-1])
        if isinstance(value, list):
            sources = ({**one, "valueFrom": {"secretKeyRef": one["secretKeyRef"]}} for one in value)
            moved = [{k: v for k, v in one.items() if k != "secretKeyRef"} for one in sources]
            document[self.field] = [*document.get(self.field, ()), *moved]
        else:
            document[self.field] = value

    def is_said(self, value: Any, beside: Mapping[str, Any]) -> bool:
        """Whether ``beside``, the object that held it, says at the new place what ``value`` said at the old one."""
        said = beside.get(self.field)
        if isinstance(value, list):
            return _names(value) <= _names(said or [])
        return bool(said)


_ENV = "env: [{name: ..., valueFrom: {secretKeyRef: {name: ..., key: ...}}}]"
MOVED = (
    Moved(("secretEnv",), "env", _ENV),
    Moved(("accelerator", "class"), "className", "className"),
    Moved(("python", "class"), "className", "className"),
)
VALUES = {("gate", "action"): {"Fail": "StopRun"}}
"""Values that have another name now, by the end of their field's path."""
_FREE = frozenset({"labels", "annotations", "nodeSelector", "matchLabels", "parameters"})
"""Maps whose keys are the author's own."""


def find_moved(location: Sequence[str | int]) -> Moved | None:
    """What became of the field at ``location``; None when none of that name has moved from there."""
    path = tuple(part for part in location if isinstance(part, str))
    return next((one for one in MOVED if path[-len(one.was) :] == one.was), None)


def find_renamed(location: Sequence[str | int], value: Any) -> str | None:
    """Today's name of a value of the field at ``location``; None where it has none other."""
    path = tuple(part for part in location if isinstance(part, str))
    known = next((names for end, names in VALUES.items() if path[-2:] == end), {})
    return known.get(value) if isinstance(value, str) else None


def with_moved(document: Any, location: tuple[str | int, ...] = ()) -> Any:
    """The document with every moved field at its new place; for what an earlier version of ours has written."""
    if isinstance(document, list):
        return [with_moved(one, (*location, index)) for index, one in enumerate(document)]
    if not isinstance(document, Mapping):
        return find_renamed(location, document) or document
    made = {
        name: value if name in _FREE else with_moved(value, (*location, name))
        for name, value in document.items()
    }
    for name in document:
        if (moved := find_moved((*location, name))) is not None:
            moved.move(made)
    return made


def find_unsaid(before: Any, now: Any, location: tuple[str | int, ...]) -> Iterator[str]:
    """Each moved field of a document that the one of today does not say at its new place, and what to write.

    ``location`` is where both stand. What was taken out of today's document whole is not missed.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name, value in before.items():
            here = (*location, str(name))
            moved = find_moved(here)
            if moved is None and name not in _FREE:
                yield from find_unsaid(value, now.get(name), here)
            elif moved is not None and value and not moved.is_said(value, now):
                yield f"{_text(here)} has moved: write {moved.now}"
    elif isinstance(before, list) and isinstance(now, list):
        for index, (one, other) in enumerate(zip(before, now, strict=False)):
            yield from find_unsaid(one, other, (*location, index))


def _names(items: list[Any]) -> set[Any]:
    return {one.get("name") for one in items if isinstance(one, Mapping)}


def _text(location: tuple[str | int, ...]) -> str:
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in location)
    return text.removeprefix(".")

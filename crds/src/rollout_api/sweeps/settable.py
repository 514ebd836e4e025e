"""Fields of a run's spec that a parameter may set: found by their path, and given a value that is written as text."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from rollout_api.base import IsReal
from rollout_api.problems import field_names
from rollout_api.v1alpha1.run import RolloutRunSpec

Step = str | int
Form = Literal["Integer", "Real", "Boolean", "Text"]
_PATH = re.compile(
    r"[A-Za-z][A-Za-z0-9]*(\[[0-9]{1,3}\])?(\.[A-Za-z][A-Za-z0-9]*(\[[0-9]{1,3}\])?)*"
)
_STEP = re.compile(r"([A-Za-z][A-Za-z0-9]*)|\[([0-9]+)\]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_BOOLEANS = {"true": True, "false": False}
SHOWN_MAX = 12


class NotSettable(ValueError):  # noqa: N818 - an answer, by its name
    """A path that names no field which a parameter may set; the message says why, and ``fix`` what to write."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True, kw_only=True)
class Settable:
    """A field that is one value. ``steps`` lead to it from the spec: names, and places in lists."""

    path: str
    steps: tuple[Step, ...]
    form: Form

    def parse(self, text: str) -> Any:
        """The value as a manifest of the cluster has it. Raises ValueError for a text of another form."""
        if self.form == "Integer":
            if not _INTEGER.fullmatch(text):
                raise ValueError(f"expected a whole number, got {text!r}")
            return int(text)
        if self.form == "Boolean":
            if text not in _BOOLEANS:
                raise ValueError(f"expected true or false, got {text!r}")
            return _BOOLEANS[text]
        return text


def find_settable(path: str) -> Settable:
    """The field of a run's spec at a path such as ``train.rewards[0].weight``. Raises NotSettable."""
    if not _PATH.fullmatch(path):
        raise NotSettable(
            f"{path!r} is no path of a field",
            "write one such as train.optimizer.adamw.learningRate",
        )
    steps: list[Step] = [name or int(place) for name, place in _STEP.findall(path)]
    annotation: Any = RolloutRunSpec
    metadata: Sequence[Any] = ()
    for at, step in enumerate(steps):
        annotation, metadata = _below(annotation, step, path, steps[:at])
    return Settable(path=path, steps=tuple(steps), form=_form(annotation, metadata, path))


def set_values(spec: Mapping[str, Any], values: Mapping[Settable, str]) -> dict[str, Any]:
    """The spec with these fields; the one given stays as it is. Raises NotSettable, and ValueError for a value."""
    made = copy.deepcopy(dict(spec))
    for field, text in values.items():
        _set(made, field, field.parse(text))
    return made


def read_text(spec: Mapping[str, Any], field: Settable) -> str | None:
    """What stands at a field, as a parameter writes it; None where nothing does."""
    here: Any = spec
    for step in field.steps:
        if isinstance(step, int):
            here = here[step] if isinstance(here, list) and step < len(here) else None
        else:
            here = here.get(step) if isinstance(here, Mapping) else None
    if isinstance(here, bool):
        return str(here).lower()
    return str(here) if isinstance(here, int | float | str) else None


def _below(
    annotation: Any, step: Step, path: str, before: Sequence[Step]
) -> tuple[Any, Sequence[Any]]:
    annotation, _ = _bare(annotation, ())
    if isinstance(step, int):
        if get_origin(annotation) is not tuple:
            raise NotSettable(f"{path!r}: there is no list before [{step}]", "leave the place out")
        return _bare(get_args(annotation)[0], ())
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        where = "in a list: name the place of its entry, such as [0]"
        raise NotSettable(f"{path!r}: {step!r} lies in no object", where)
    for name, info in annotation.model_fields.items():
        if (info.alias or name) == step:
            return _bare(info.annotation, info.metadata)
    known = field_names(RolloutRunSpec, list(before))
    there = ", ".join(known[:SHOWN_MAX]) + (", ..." if len(known) > SHOWN_MAX else "")
    raise NotSettable(f"{path!r}: there is no field {step!r}", f"write one of {there}")


def _bare(annotation: Any, metadata: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Without what only says more about it."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _bare(inner, (*more, *metadata))
    if get_origin(annotation) in (Union, UnionType):
        inner = [one for one in get_args(annotation) if one is not NoneType]
        return _bare(inner[0], metadata) if len(inner) == 1 else (annotation, metadata)
    return annotation, metadata


def _form(annotation: Any, metadata: Sequence[Any], path: str) -> Form:
    if any(isinstance(one, IsReal) for one in metadata):
        return "Real"
    if annotation is bool:
        return "Boolean"
    if annotation is int:
        return "Integer"
    if annotation is str or get_origin(annotation) is Literal:
        return "Text"
    raise NotSettable(
        f"{path!r} is no single value",
        "name a field below it that is a number, a text or a boolean",
    )


def _set(document: dict[str, Any], field: Settable, value: Any) -> None:
    here: Any = document
    for step, _ in pairwise(field.steps):
        here = _enter(here, step, field)
    last = field.steps[-1]
    if isinstance(last, int):
        _enter(here, last, field)
    here[last] = value


def _enter(here: Any, step: Step, field: Settable) -> Any:
    """What lies at a step; an object that is not there is made, an entry of a list is not."""
    if isinstance(step, int):
        if not isinstance(here, list) or step >= len(here):
            raise NotSettable(
                f"{field.path!r}: the template has no entry [{step}] there",
                "write it into the template",
            )
        return here[step]
    if not isinstance(here, dict):
        raise NotSettable(
            f"{field.path!r}: the template has no object there", "correct the template"
        )
    if here.get(step) is None:
        here[step] = [] if _is_list(field, step) else {}
    return here[step]


def _is_list(field: Settable, step: str) -> bool:
    place = field.steps.index(step)
    return place + 1 < len(field.steps) and isinstance(field.steps[place + 1], int)

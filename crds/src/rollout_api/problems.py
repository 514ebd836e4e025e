"""What is wrong with a manifest, as data: field, reason, message, fix.

The same type comes from pydantic's parsing and from ``rollout_api.checks``; the CLI prints it with a
line number, the webhook and the reconciler put it into a message.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ValidationError

from rollout_api.fields.moved import find_moved, find_renamed


class Severity(StrEnum):
    """Errors refuse the manifest; warnings are printed and let it pass."""

    error = "error"
    warning = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong. ``reason`` is a CamelCase word of a closed set, ``fix`` says what to write."""

    field: str
    reason: str
    message: str
    fix: str
    severity: Severity = Severity.error

    def __str__(self) -> str:
        """One line: what the webhook refuses with, what a condition says, what the CLI prints."""
        return f"{self.field}: {self.message}; {self.fix}"


_REASONS: Mapping[str, str] = {
    "extra_forbidden": "UnknownField",
    "missing": "MissingField",
    "frozen_instance": "Immutable",
    "literal_error": "InvalidValue",
    "enum": "InvalidValue",
    "string_pattern_mismatch": "InvalidValue",
    "string_too_long": "TooLong",
    "string_too_short": "TooShort",
    "too_long": "TooMany",
    "too_short": "TooFew",
    "greater_than": "OutOfRange",
    "greater_than_equal": "OutOfRange",
    "less_than": "OutOfRange",
    "less_than_equal": "OutOfRange",
    "value_error": "InvalidValue",
    "exactly_one": "ExactlyOneOf",
    "duplicate": "DuplicateName",
    "names_of_others": "InvalidValue",
    "selector_of_others": "InvalidValue",
}

_UNBUILT: Mapping[str, tuple[str, str]] = {
    "engine.sglang": (
        "SGLang as an engine of a manifest is not supported by this version: no check of what its server has loaded is built",
        "use vllm or embedded; `rollout infer serve --engine sglang` serves with it",
    )
}
"""Fields that people look for and that there are not, by the end of their path: what is refused, and what there is instead."""


def field_path(location: Sequence[str | int]) -> str:
    """``("spec", "rewards", 0)`` as ``spec.rewards[0]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def problems_from_validation(error: ValidationError, model: type[BaseModel]) -> tuple[Problem, ...]:
    """One Problem per error of pydantic, with the nearest known field name for a misspelt one."""
    return tuple(_problem(item, model) for item in error.errors(include_url=False))


def _problem(item: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    field = field_path(item["loc"])
    kind = str(item["type"])
    reason = _REASONS.get(kind, "InvalidType")
    if kind == "extra_forbidden":
        return _unknown_field(field, item, model)
    if kind == "missing":
        return Problem(
            field=field,
            reason=reason,
            message="this field is required",
            fix=f"add {item['loc'][-1]}",
        )
    message = re.sub(r"^Value error, ", "", str(item["msg"]))
    return Problem(
        field=field,
        reason=reason,
        message=f"{message}; got {_short(item.get('input'))}",
        fix=_renamed(item) or _fix(kind, item.get("ctx", {})),
    )


def _renamed(item: Mapping[str, Any]) -> str:
    """What to write where a value of an earlier schema has another name now."""
    now = find_renamed(item["loc"], item.get("input"))
    return "" if now is None else f"it has another name now: write {now}"


def _unknown_field(field: str, item: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    name = str(item["loc"][-1])
    if (unbuilt := _UNBUILT.get(".".join(map(str, item["loc"][-2:])))) is not None:
        return Problem(field=field, reason="NotSupported", message=unbuilt[0], fix=unbuilt[1])
    known = field_names(model, item["loc"][:-1])
    near = difflib.get_close_matches(name, known, n=1)
    fix = f"did you mean {near[0]}?" if near else f"remove it; known here: {', '.join(known)}"
    if moved := find_moved(item["loc"]):
        fix = f"it has moved: write {moved.now}"
    return Problem(
        field=field, reason="UnknownField", message=f"there is no field {name!r} here", fix=fix
    )


def field_names(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The names (as written in files) of the fields of the model at ``location``; empty if unknown."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            continue
        current = _child(current, part) if current else None
    if current is None:
        return []
    return [info.alias or name for name, info in current.model_fields.items()]


def _child(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    for key, info in model.model_fields.items():
        if name in {key, info.alias}:
            return _model_in(info.annotation)
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        if found := _model_in(part):
            return found
    return None


def _fix(kind: str, context: Mapping[str, Any]) -> str:
    if kind in {"literal_error", "enum"}:
        return f"write one of {context.get('expected')}"
    bounds = {key: context[key] for key in ("gt", "ge", "lt", "le") if key in context}
    if bounds:
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        return "write a value " + " and ".join(f"{signs[k]} {v}" for k, v in bounds.items())
    if "pattern" in context:
        return f"match {context['pattern']}"
    return "see `rollout schema` or the API reference for this field"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

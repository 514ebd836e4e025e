"""How a check says that a field, or a value of it, is not acted on in this version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from rollout_api.problems import Problem


def not_supported(field: str, what: str, fix: str) -> Problem:
    """Refuse ``what`` by name."""
    message = f"{what} is not supported by this version"
    return Problem(field=field, reason="NotSupported", message=message, fix=fix)


def unread(model: BaseModel, names: Sequence[str], path: str, why: str) -> Iterator[Problem]:
    """Refuse those fields of ``model`` (by attribute name) that hold another value than their default."""
    for name in names:
        info = type(model).model_fields[name]
        if getattr(model, name) != info.default:
            yield not_supported(f"{path}.{info.alias}", f"{info.alias} {why}", "leave it out")

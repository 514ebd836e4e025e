"""Reading one field of a raw record, and what is said when it is not what it must be. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from rollout.types import Role

ROLES = get_args(Role)
Turn = dict[str, Any]
"""One message as plain data: ``role`` and ``content``; ``tool_calls`` and ``tool_call_id`` where calls are read."""


class BadRecord(ValueError):  # noqa: N818 - a record is bad, the program is not
    """One record cannot be used; the message says which field and why."""


def read_field(record: Mapping[str, Any], field: str) -> Any:
    """The field as it is. Raises BadRecord when it is not there."""
    if field not in record:
        has = ", ".join(map(repr, list(record)[:8])) or "no field at all"
        raise BadRecord(f"field {field!r} is missing (the record has {has})")
    return record[field]


def read_text(record: Mapping[str, Any], field: str) -> str:
    """Text with more than white space in it. Raises BadRecord."""
    value = read_field(record, field)
    if not isinstance(value, str):
        raise BadRecord(f"field {field!r}: expected text, got {kind(value)}")
    if not value.strip():
        raise BadRecord(f"field {field!r} is empty")
    return value


def read_scalar(record: Mapping[str, Any], field: str) -> str:
    """Text, or a number as text. Raises BadRecord."""
    value = read_field(record, field)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadRecord(f"field {field!r}: expected text or a number, got {kind(value)}")
    return str(value)


def read_number(record: Mapping[str, Any], field: str) -> float:
    """A finite number. Raises BadRecord."""
    value = read_field(record, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRecord(f"field {field!r}: expected a finite number, got {value!r:.40}")
    return float(value)


def read_flag(record: Mapping[str, Any], field: str) -> bool:
    """True or false and nothing else: 0, 1 and "yes" are refused. Raises BadRecord."""
    value = read_field(record, field)
    if not isinstance(value, bool):
        raise BadRecord(f"field {field!r}: expected true or false, got {value!r:.40}")
    return value


def read_turns(
    record: Mapping[str, Any], field: str, read_turn: Callable[[Any, str], Turn] | None = None
) -> list[Turn]:
    """A list of messages, at least one; text is all that they hold, or what ``read_turn`` reads. Raises BadRecord."""
    found = read_field(record, field)
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise BadRecord(f"field {field!r}: expected a list of messages, got {kind(found)}")
    read = read_turn or read_text_turn
    return [read(item, f"{field}[{i}]") for i, item in enumerate(found)]


def read_text_turn(item: Any, where: str) -> Turn:
    """A message of text only. Raises BadRecord."""
    if not isinstance(item, Mapping) or item.get("role") not in ROLES:
        raise BadRecord(f"field {where}: expected {{role: {'|'.join(ROLES)}, content: text}}")
    if item.get("tool_calls"):
        raise BadRecord(
            f"field {where}: tool_calls are read in the conversations of sft and in prompts only; here text is all"
        )
    content = item.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        raise BadRecord(
            f"field {where}: content has parts ({_kinds(content)}); text alone can be trained on yet: join it"
        )
    return {"role": item["role"], "content": read_text(item, "content")}


def _kinds(parts: Sequence[Any]) -> str:
    """The types of a message's parts, each once."""
    said = (one.get("type") if isinstance(one, Mapping) else kind(one) for one in parts[:8])
    return ", ".join(dict.fromkeys(str(one)[:20] for one in said)) or "none"


def kind(value: Any) -> str:
    """What a value is, for people."""
    return "null" if value is None else type(value).__name__

"""From a raw record to a row: which fields are the prompt, the answer or the conversation. Pure.

A row keeps the record's own fields and adds ``messages`` (what the policy is shown), ``prompt`` (the
last thing it is asked) and, where there is one, ``answer`` (text: the reference that rewards see and
SFT trains on).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from rollout.types import Message, Role, Row

ROLES = get_args(Role)
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")


class BadRecord(ValueError):  # noqa: N818 - a record is bad, the program is not
    """One record cannot be used; the message says which field and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """How records become rows. Field names None take the defaults ``prompt`` and ``answer``.

    ``template`` is the user message's text with ``{field}`` placeholders (``{{`` for a brace);
    ``messages_field`` names a list of ``{role, content}`` instead of a prompt, whose last assistant
    message is the answer unless ``answer_field`` names another. ``system_prompt`` comes first.
    ``answer_required`` makes a record without an answer a bad one.
    """

    prompt_field: str | None = None
    answer_field: str | None = None
    messages_field: str | None = None
    system_prompt: str | None = None
    template: str | None = None
    answer_required: bool = False


def map_record(mapping: FieldMapping, record: Mapping[str, Any]) -> Row:
    """The record as a row. Raises BadRecord."""
    if mapping.messages_field is not None:
        messages, said = _conversation(record, mapping.messages_field)
    else:
        messages, said = [{"role": "user", "content": _user_text(mapping, record)}], None
    if mapping.system_prompt is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": mapping.system_prompt}, *messages]
    answer = _answer(mapping, record, said)
    if answer is None and mapping.answer_required:
        raise BadRecord("has no answer; name its field with answerField")
    row = {**record, "messages": messages, "prompt": messages[-1]["content"]}
    return row if answer is None else {**row, "answer": answer}


def row_messages(row: Row) -> tuple[Message, ...]:
    """What the policy is shown."""
    return tuple(Message(role=m["role"], content=m["content"]) for m in row["messages"])


def training_messages(row: Row) -> tuple[Message, ...]:
    """The conversation with its answer, for SFT. Raises BadRecord when the row has no answer."""
    answer = row.get("answer")
    if answer is None:
        raise BadRecord("has no answer to train on; name its field with answerField")
    return (*row_messages(row), Message(role="assistant", content=answer))


def _user_text(mapping: FieldMapping, record: Mapping[str, Any]) -> str:
    if mapping.template is not None:
        return fill_template(mapping.template, record)
    return _text(record, mapping.prompt_field or "prompt")


def fill_template(template: str, record: Mapping[str, Any]) -> str:
    """``{field}`` replaced by the record's text. Raises BadRecord for a field that is not there."""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group(0)[0] if name is None else _scalar(record, name)

    return _PLACEHOLDER.sub(fill, template)


def _answer(mapping: FieldMapping, record: Mapping[str, Any], said: str | None) -> str | None:
    if mapping.answer_field is not None:
        return _scalar(record, mapping.answer_field)
    if said is not None or record.get("answer") is None:
        return said
    return _scalar(record, "answer")


def _conversation(record: Mapping[str, Any], field: str) -> tuple[list[dict[str, str]], str | None]:
    """The messages up to the last assistant turn, and that turn's text when it comes last."""
    found = _get(record, field)
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise BadRecord(f"field {field!r}: expected a list of messages, got {_kind(found)}")
    messages = [_message(item, f"{field}[{i}]") for i, item in enumerate(found)]
    if messages[-1]["role"] != "assistant":
        return messages, None
    if len(messages) == 1:
        raise BadRecord(f"field {field!r}: an answer with no prompt before it")
    return messages[:-1], messages[-1]["content"]


def _message(item: Any, where: str) -> dict[str, str]:
    if not isinstance(item, Mapping) or item.get("role") not in ROLES:
        raise BadRecord(f"field {where}: expected {{role: {'|'.join(ROLES)}, content: text}}")
    return {"role": item["role"], "content": _text(item, "content")}


def _get(record: Mapping[str, Any], field: str) -> Any:
    if field not in record:
        has = ", ".join(map(repr, list(record)[:8])) or "no field at all"
        raise BadRecord(f"field {field!r} is missing (the record has {has})")
    return record[field]


def _text(record: Mapping[str, Any], field: str) -> str:
    value = _get(record, field)
    if not isinstance(value, str):
        raise BadRecord(f"field {field!r}: expected text, got {_kind(value)}")
    if not value.strip():
        raise BadRecord(f"field {field!r} is empty")
    return value


def _scalar(record: Mapping[str, Any], field: str) -> str:
    value = _get(record, field)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadRecord(f"field {field!r}: expected text or a number, got {_kind(value)}")
    return str(value)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__

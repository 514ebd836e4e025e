"""From a raw record to a row: which fields are the prompt, the answer or the conversation. Pure.

A row keeps the record's own fields and adds ``messages`` (what the policy is shown), ``prompt`` (the
last thing it is asked) and, where there is one, ``answer`` (text: the reference that rewards see and
SFT trains on). By its ``target`` it may hold a pair instead (``chosen``, ``rejected``, ``margin``), or an
answer with its ``label``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout.data.rows.calls import build_messages, build_tools, read_conversation, read_tools
from rollout.data.rows.fields import BadRecord, Turn, read_scalar, read_text
from rollout.data.rows.preferences import read_labelled, read_pair
from rollout.turns import ToolSpec
from rollout.types import Message, Row

__all__ = [
    "BadRecord",
    "FieldMapping",
    "Target",
    "fill_template",
    "map_record",
    "pair_messages",
    "row_messages",
    "training_messages",
    "training_tools",
]

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")

Target = Literal["none", "answer", "pair", "label"]
"""What an algorithm learns from in a row: nothing (RL), its answer, both answers, or answer and label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """How records become rows. Field names None take the defaults ``prompt`` and ``answer``.

    ``template`` is the user message's text with ``{field}`` placeholders (``{{`` for a brace);
    ``messages_field`` names a list of ``{role, content}`` instead of a prompt, whose last assistant
    message is the answer unless ``answer_field`` names another; it may hold calls of the tools that the record's
    field ``tools`` lists. ``system_prompt`` comes first.
    A record without what ``target`` needs is a bad one. ``margin_field`` None: pairs have no margin.
    """

    prompt_field: str | None = None
    answer_field: str | None = None
    messages_field: str | None = None
    chosen_field: str = "chosen"
    rejected_field: str = "rejected"
    label_field: str = "label"
    margin_field: str | None = None
    system_prompt: str | None = None
    template: str | None = None
    target: Target = "none"


def map_record(mapping: FieldMapping, record: Mapping[str, Any]) -> Row:
    """The record as a row. Raises BadRecord."""
    messages, found = _targets(mapping, record)
    if mapping.system_prompt is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": mapping.system_prompt}, *messages]
    return {**record, "messages": messages, "prompt": messages[-1]["content"], **found}


def _targets(mapping: FieldMapping, record: Mapping[str, Any]) -> tuple[list[Turn], dict[str, Any]]:
    """The prompt's messages, and what is learned from by name."""
    if mapping.target == "pair":
        shared, found = read_pair(
            record, mapping.chosen_field, mapping.rejected_field, mapping.margin_field
        )
        return shared or _prompt(mapping, record), found
    if mapping.target == "label":
        return _labelled(mapping, record)
    messages, said = _asked(mapping, record)
    answer = _answer(mapping, record, said)
    found: dict[str, Any] = {} if answer is None else {"answer": answer}
    if mapping.target != "answer":
        return messages, found
    if answer is None:
        raise BadRecord("has no answer; name its field with answerField")
    calls = said.get("tool_calls", ()) if said is not None and mapping.answer_field is None else ()
    if not answer.strip() and not calls:
        raise BadRecord(f"field {mapping.answer_field or 'answer'!r} is empty")
    if calls:
        found["answer_calls"] = calls
    if mapping.messages_field is not None and record.get("tools"):
        found["tools"] = read_tools(record["tools"], "tools")
    return messages, found


def _labelled(
    mapping: FieldMapping, record: Mapping[str, Any]
) -> tuple[list[Turn], dict[str, Any]]:
    field = mapping.answer_field or "answer"
    if mapping.messages_field is None or mapping.answer_field is not None:
        shared, found = read_labelled(record, field, mapping.label_field)
        return shared or _prompt(mapping, record), found
    messages, said = _asked(mapping, record)
    heard = record if said is None else {**record, field: said["content"]}
    return messages, read_labelled(heard, field, mapping.label_field)[1]


def _asked(mapping: FieldMapping, record: Mapping[str, Any]) -> tuple[list[Turn], Turn | None]:
    """The prompt's messages, and the assistant's last turn where a conversation ends in it."""
    if mapping.messages_field is not None:
        return _conversation(record, mapping.messages_field)
    return [{"role": "user", "content": _user_text(mapping, record)}], None


def _prompt(mapping: FieldMapping, record: Mapping[str, Any]) -> list[Turn]:
    messages, said = _asked(mapping, record)
    if said is not None:
        raise BadRecord(
            f"field {mapping.messages_field!r}: ends with the assistant, so that there is nothing to"
            " answer; leave the answer to its own field"
        )
    return messages


def row_messages(row: Row) -> tuple[Message, ...]:
    """What the policy is shown."""
    return build_messages(row["messages"])


def training_messages(row: Row) -> tuple[Message, ...]:
    """The conversation with its answer, for SFT. Raises BadRecord when the row has no answer."""
    answer = row.get("answer")
    if answer is None:
        raise BadRecord("has no answer to train on; name its field with answerField")
    last = {"role": "assistant", "content": answer, "tool_calls": row.get("answer_calls", ())}
    return build_messages((*row["messages"], last))


def training_tools(row: Row) -> tuple[ToolSpec, ...]:
    """The tools that the row's conversation was had with, for SFT."""
    return build_tools(row.get("tools") or ())


def pair_messages(row: Row) -> tuple[tuple[Message, ...], str, str]:
    """The prompt, the chosen and the rejected answer. Raises BadRecord when the row is no pair."""
    if "chosen" not in row or "rejected" not in row:
        raise BadRecord("is no pair; name its fields with chosenField and rejectedField")
    return row_messages(row), row["chosen"], row["rejected"]


def _user_text(mapping: FieldMapping, record: Mapping[str, Any]) -> str:
    if mapping.template is not None:
        return fill_template(mapping.template, record)
    return read_text(record, mapping.prompt_field or "prompt")


def fill_template(template: str, record: Mapping[str, Any]) -> str:
    """``{field}`` replaced by the record's text. Raises BadRecord for a field that is not there."""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group(0)[0] if name is None else read_scalar(record, name)

    return _PLACEHOLDER.sub(fill, template)


def _answer(mapping: FieldMapping, record: Mapping[str, Any], said: Turn | None) -> str | None:
    if mapping.answer_field is not None:
        return read_scalar(record, mapping.answer_field)
    if said is not None:
        return said["content"]
    return None if record.get("answer") is None else read_scalar(record, "answer")


def _conversation(record: Mapping[str, Any], field: str) -> tuple[list[Turn], Turn | None]:
    """The messages up to the last assistant turn, and that turn when it comes last."""
    messages = read_conversation(record, field)
    if messages[-1]["role"] != "assistant":
        return messages, None
    if len(messages) == 1:
        raise BadRecord(f"field {field!r}: an answer with no prompt before it")
    return messages[:-1], messages[-1]

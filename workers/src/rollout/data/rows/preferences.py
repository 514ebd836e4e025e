"""From a raw record to a pair of answers, or to one answer that is good or bad. Pure.

An answer is text, or a list of messages that ends in one message of the assistant. Where both answers of
a pair are whole conversations, what they share at the start is the prompt; else the record brings it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.data.rows.fields import (
    BadRecord,
    Turn,
    read_field,
    read_flag,
    read_number,
    read_text,
    read_turns,
)


def read_pair(
    record: Mapping[str, Any], chosen_field: str, rejected_field: str, margin_field: str | None
) -> tuple[list[Turn], dict[str, Any]]:
    """The messages that both answers share (none for plain text), and ``chosen``, ``rejected``, ``margin``.

    Raises BadRecord for answers that are empty, equal, or of more than one message.
    """
    chosen, rejected = _answer(record, chosen_field), _answer(record, rejected_field)
    if chosen == rejected:
        raise BadRecord(
            f"fields {chosen_field!r} and {rejected_field!r} hold equal answers: no preference"
        )
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    pair: dict[str, Any] = {
        "chosen": _only_turn(chosen[shared:], chosen_field),
        "rejected": _only_turn(rejected[shared:], rejected_field),
    }
    if margin_field is not None:
        pair["margin"] = read_number(record, margin_field)
    return chosen[:shared], pair


def read_labelled(
    record: Mapping[str, Any], answer_field: str, label_field: str
) -> tuple[list[Turn], dict[str, Any]]:
    """The messages before the answer (none for plain text), and ``answer`` and ``label``.

    Raises BadRecord for an empty answer or a label that is not true or false.
    """
    turns = _answer(record, answer_field)
    answer = _only_turn(turns[-1:], answer_field)
    return turns[:-1], {"answer": answer, "label": read_flag(record, label_field)}


def _answer(record: Mapping[str, Any], field: str) -> list[Turn]:
    if isinstance(read_field(record, field), str):
        return [{"role": "assistant", "content": read_text(record, field)}]
    return read_turns(record, field)


def _only_turn(turns: list[Turn], field: str) -> str:
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        roles = ", ".join(turn["role"] for turn in turns) or "nothing"
        raise BadRecord(
            f"field {field!r}: expected one message of the assistant after the prompt, got {roles}"
        )
    return turns[0]["content"]

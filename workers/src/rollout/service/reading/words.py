"""Calls and answers in short, for people: what was asked, and what came of it.

A kind of call that is new is described by its fields, whatever they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollout.service.calls import (
    ForwardBackward,
    LossAnswer,
    ModelAnswer,
    ModelCall,
    RefusedAnswer,
    RefusedCall,
    SavedAnswer,
    StepAnswer,
)

VALUE_MAX = 160
"""Characters of one value."""
TOKEN_BYTES = 4


def kind_name(call: msgspec.Struct) -> str:
    """The name of a call's kind, as the book has it."""
    return str(call.__struct_config__.tag)


def num_tokens(call: ForwardBackward) -> int:
    """Tokens of all sequences of a call."""
    return sum(len(one.tokens) // TOKEN_BYTES for one in call.data)


def describe_call(call: ModelCall) -> str:
    """What was asked."""
    if isinstance(call, ForwardBackward):
        settings = "".join(f" {name}={_short(value)}" for name, value in call.config.items())
        forward = "" if call.backward else ", forward only"
        return f"{_short(call.loss)}{settings} of {len(call.data)} sequences, {num_tokens(call)} tokens{forward}"
    if isinstance(call, RefusedCall):
        return "a call that cannot be made"
    return _fields(call)


def describe_answer(answer: ModelAnswer | None) -> str:
    """What came of it."""
    if answer is None:
        return "not answered yet"
    if isinstance(answer, RefusedAnswer):
        return f"refused: {_short(answer.error)}"
    if isinstance(answer, LossAnswer | StepAnswer):
        return ", ".join(f"{name} {value:.6g}" for name, value in answer.metrics.items())
    if isinstance(answer, SavedAnswer):
        what = "state" if answer.state else "weights"
        return f"{what} {answer.digest}{f' as {answer.name}' if answer.name else ''}"
    return _fields(answer)


def plain_fields(value: msgspec.Struct) -> dict[str, Any]:
    """The fields of a call or an answer that are numbers, texts and yes or no, as JSON has them."""
    found = {name: getattr(value, name) for name in value.__struct_fields__}
    return {
        name: one for name, one in found.items() if isinstance(one, str | int | float | bool | None)
    }


def _fields(value: msgspec.Struct) -> str:
    told = [(name, one) for name, one in plain_fields(value).items() if one is not None]
    return ", ".join(f"{name} {_short(one)}" for name, one in told) or "-"


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= VALUE_MAX else text[: VALUE_MAX - 3] + "..."

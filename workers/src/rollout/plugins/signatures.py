"""Whether a reward of a user's can be called as it will be: with a batch, and with its parameters by name. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

BATCH = ("prompts", "completions", "rows")


def find_mismatch(signature: inspect.Signature, parameters: Iterable[str]) -> str:
    """Why a function of this signature cannot be called so, as Python says it; empty when it can."""
    try:
        signature.bind(*BATCH, **dict.fromkeys(parameters))
    except TypeError as error:
        return str(error)
    return ""


def describe_mismatch(name: str, why: str, parameters: Iterable[str]) -> str:
    """The same for people: what is called, with what, and what Python says to it."""
    given = ", ".join((*BATCH, *(f"{name}=..." for name in parameters)))
    return f"{name} is called with ({given}), and does not take that: {why}"

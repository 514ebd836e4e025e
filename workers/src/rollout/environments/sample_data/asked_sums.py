"""Problems as a careless pupil with a calculator works them: what the warm start of ``rollout://tiny-agent`` imitates.

Or with Python (``programmed_sums``). It asks the calculator for some problems and guesses the others; now and then it types a wrong digit, or writes down
another number than it was told. A model that imitates this knows how a call is written and where its result is to
be found; what is left for reinforcement learning is to find out, from right or wrong alone, that asking and copying
with care pay. Only training problems are worked: the held-out splits are never shown.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.rendering.tool_calls import call_id
from rollout.seeds import derive_seed
from rollout.tools.calculator import calculator
from rollout.tools.sources import build_sources
from rollout.turns import ToolSpec
from rollout.types import Message, ToolCall, ToolResult

PROBLEMS = Arithmetic(digits=3, operations="+-*")
"""Sums, differences and products of two numbers below 1,000, as the sample's environment has them."""

Manner = Literal["careful", "guesses", "types-wrong", "reads-wrong"]
SHARES: tuple[tuple[int, Manner], ...] = (
    (40, "careful"),
    (80, "guesses"),
    (90, "types-wrong"),
    (100, "reads-wrong"),
)
"""How a problem is worked, by a draw below 100: the first whose number is above it."""


Conversation = tuple[tuple[Message, ...], tuple[ToolSpec, ...]]


def asked_sums(count: int) -> Iterator[Conversation]:
    """The first ``count`` conversations and their tools, in an order of their own; equal on every machine."""
    yield from _sums(count, "calculator")


def programmed_sums(count: int) -> Iterator[Conversation]:
    """The same, of a pupil that has a program print what it wants to know."""
    yield from _sums(count, "python_exec")


def _sums(count: int, tool: str) -> Iterator[Conversation]:
    tools = tuple(spec for source in build_sources([tool]) for spec in source.specs)
    source = ArithmeticSource(PROBLEMS, "train")
    for number in range(count):
        draw = random.Random(derive_seed(0, "pupil-with-a-calculator", number))
        row = source.rows([draw.randrange(len(source))])[0]
        yield _worked(tool, row["prompt"], row["answer"], draw), tools


def _worked(tool: str, prompt: str, answer: str, draw: random.Random) -> tuple[Message, ...]:
    chance = draw.randrange(100)
    manner = next(name for below, name in SHARES if chance < below)
    question = Message(role="user", content=prompt)
    if manner == "guesses":
        return question, Message(role="assistant", content=_guess(answer, draw))
    asked = prompt.removesuffix("=")
    typed = _slip(asked, draw) if manner == "types-wrong" else asked
    told = calculator(typed)
    written = _slip(told, draw) if manner == "reads-wrong" else told
    return question, *_call(tool, typed, told), Message(role="assistant", content=written)


def _call(tool: str, typed: str, told: str) -> tuple[Message, Message]:
    given = {"expression": typed} if tool == "calculator" else {"code": f"print({typed})"}
    call = ToolCall(call_id=call_id(0, 0), name=tool, arguments_text="", arguments=given)
    result = ToolResult(call_id=call.call_id, name=call.name, text=told)
    return Message(role="assistant", content=(call,)), Message(role="tool", content=(result,))


def _guess(answer: str, draw: random.Random) -> str:
    """A number as long as the answer."""
    return "".join(str(draw.randrange(10)) if c.isdigit() else c for c in answer)


def _slip(text: str, draw: random.Random) -> str:
    """The text with one digit, never a number's first, replaced by any."""
    places = [i for i, c in enumerate(text) if c.isdigit() and i and text[i - 1].isdigit()]
    if not places:
        return f"{text}{draw.randrange(10)}"
    place = draw.choice(places)
    return f"{text[:place]}{draw.randrange(10)}{text[place + 1 :]}"

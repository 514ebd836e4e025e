"""The tools of one episode: each call of a reply is answered, in order, within bounds, once.

A wrong call is answered with what is wrong. A call that was answered before (its id is known) gets the same answer
again and is not done twice. An equal call of a pure tool is not done again either: the policy sees the earlier answer
and that it has it already; one that goes on asking is in a loop, which the episode's environment ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollout.errors import InfrastructureError, RolloutError
from rollout.tools.contract import Tool, ToolAnswer, ToolMistake, ToolSource
from rollout.tools.text import CHARACTERS_MAX, clean_text, cut_text
from rollout.turns import ToolSpec
from rollout.types import Row, ToolCall, ToolResult

log = logging.getLogger(__name__)

CLOSE_SECONDS_MAX = 10.0
SHOWN_MAX = 120

_WRONG: Mapping[str, str] = {
    "invalid-json": "the arguments are not valid JSON",
    "unclosed": "the call is not closed",
    "missing-name": "the call names no tool",
    "malformed": "the call is malformed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolboxLimits:
    """``repeats``: how often an equal call may be asked for again before it is a loop; ``invalid``: wrong calls in a row."""

    calls_per_turn: int = 8
    repeats: int = 3
    invalid: int = 4
    characters: int = CHARACTERS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRound:
    """What a reply's calls gave. ``loop`` says what the policy does over and over; empty: nothing."""

    results: tuple[ToolResult, ...]
    signals: Mapping[str, float] = field(default_factory=dict)
    loop: str = ""


class Toolbox:
    """The tools of one episode. ``recorded``: answers of an earlier attempt, by call id, that are fed back as they were."""

    def __init__(
        self,
        sources: Sequence[ToolSource],
        row: Row,
        *,
        limits: ToolboxLimits | None = None,
        recorded: Mapping[str, ToolResult] | None = None,
    ) -> None:
        opened = [tool for source in sources for tool in source.open(row)]
        self._tools: dict[str, Tool] = {tool.spec.name: tool for tool in opened}
        self._limits = limits or ToolboxLimits()
        self._answered: dict[str, ToolResult] = dict(recorded or {})
        self._known: dict[str, ToolResult] = {}
        self._repeats: Counter[str] = Counter()
        self._invalid = 0
        self._closed = False

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy sees, by name."""
        return tuple(self._tools[name].spec for name in sorted(self._tools))

    async def answer(self, calls: Sequence[ToolCall]) -> ToolRound:
        """Answer every call of one reply. Raises InfrastructureError, and what a broken tool raises."""
        counts: Counter[str] = Counter(tool_calls=len(calls))
        results: list[ToolResult] = []
        loop = ""
        for place, call in enumerate(calls):
            if place >= self._limits.calls_per_turn:
                text = f"not executed: a reply may hold {self._limits.calls_per_turn} calls"
                result = _result(call, text, is_error=True)
            else:
                result = await self._answer(call, counts)
            results.append(result)
            self._answered[call.call_id] = result
            loop = loop or self._loop(call)
        return ToolRound(results=tuple(results), signals=dict(counts), loop=loop)

    async def _answer(self, call: ToolCall, counts: Counter[str]) -> ToolResult:
        if (before := self._answered.get(call.call_id)) is not None:
            return before
        tool = self._tools.get(call.name)
        wrong = self._wrong(call, tool)
        if wrong or tool is None or call.arguments is None:
            self._invalid += 1
            counts["tool_invalid"] += 1
            return _result(call, f"error: {wrong}", is_error=True)
        key = _key(call)
        if tool.traits.pure and (known := self._known.get(key)) is not None:
            self._repeats[key] += 1
            counts["tool_repeats"] += 1
            text = f"(you have asked this before; the answer was)\n{known.text}"
            return _result(call, text, is_error=known.is_error)
        answer = await _call(tool, call)
        self._invalid = 0
        counts.update(answer.signals)
        counts["tool_errors"] += answer.is_error
        text = cut_text(clean_text(answer.text), self._limits.characters)
        result = _result(call, text, is_error=answer.is_error)
        if tool.traits.pure:
            self._known[key] = result
        return result

    def _wrong(self, call: ToolCall, tool: Tool | None) -> str:
        if call.status in _WRONG:
            return _WRONG[call.status]
        if tool is None:
            return f"no tool {call.name[:SHOWN_MAX]!r}; there are {', '.join(sorted(self._tools))}"
        return "" if call.arguments is not None else "the arguments are no JSON object"

    def _loop(self, call: ToolCall) -> str:
        if self._repeats[_key(call)] >= self._limits.repeats:
            return f"{call.name} was called {self._repeats[_key(call)] + 1} times with the same arguments"
        if self._invalid >= self._limits.invalid:
            return f"{self._invalid} calls in a row were wrong"
        return ""

    async def close(self) -> None:
        """Close every tool; idempotent. One that does not close in time is left, and told."""
        if self._closed:
            return
        self._closed = True
        for name, tool in self._tools.items():
            try:
                await asyncio.wait_for(tool.close(), CLOSE_SECONDS_MAX)
            except Exception as error:  # noqa: BLE001 - the others are to be closed too
                log.warning("tool not closed tool=%s error=%s", name, error)


async def _call(tool: Tool, call: ToolCall) -> ToolAnswer:
    assert call.arguments is not None
    try:
        return await asyncio.wait_for(tool.call(call.arguments, call.call_id), tool.traits.seconds)
    except ToolMistake as mistake:
        return ToolAnswer(text=f"error: {mistake}", is_error=True)
    except TimeoutError:
        text = f"error: no answer within {tool.traits.seconds:g} s"
        return ToolAnswer(text=text, is_error=True, signals={"tool_timeouts": 1})
    except InfrastructureError as error:
        raise InfrastructureError(f"tool {call.name!r}: {error}") from error
    except RolloutError as error:
        with contextlib.suppress(TypeError):
            raise type(error)(f"tool {call.name!r}: {error}") from error
        raise


def _result(call: ToolCall, text: str, *, is_error: bool) -> ToolResult:
    return ToolResult(
        call_id=call.call_id, name=call.name[:SHOWN_MAX], text=text, is_error=is_error
    )


def _key(call: ToolCall) -> str:
    """Equal for calls that ask the same: upper case and spaces do not make a new question."""
    written = json.dumps(_plain(call.arguments or {}), sort_keys=True, ensure_ascii=False)
    return f"{call.name} {written}"


def _plain(value: object) -> object:
    if isinstance(value, str):
        return " ".join(value.lower().split())
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    return value

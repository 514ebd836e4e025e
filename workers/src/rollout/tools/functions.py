"""A typed Python function as a tool: its schema is its signature, its description the docstring's first paragraph.

Arguments are checked against the types before the function is called, and nothing is called with others. Ordinary
functions run in a thread; one that does not return in time is left to itself, and only so many may be.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from rollout.errors import EngineError, InfrastructureError, SpecError
from rollout.tools.contract import ToolAnswer, ToolMistake, ToolTraits
from rollout.turns import ToolSpec

HUNG_MAX = 64
"""Threads of this process that may be left to functions which never return."""
FORMS_MAX = 256
"""Functions whose forms are kept."""
_hung: set[threading.Thread] = set()


class FunctionTool:
    """One function. ``name`` None: the function's own."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        traits: ToolTraits | None = None,
        close: Callable[[], Any] | None = None,
    ) -> None:
        self._function = function
        self._close = close
        self.traits = traits or ToolTraits()
        form = read_form(function)
        self._arguments = form.arguments
        self.spec = ToolSpec(
            name=name or function.__name__,
            description=form.description,
            parameters=form.parameters,
        )

    async def call(self, arguments: Mapping[str, Any], key: str) -> ToolAnswer:
        """Call it. What it raises is told to the policy; an InfrastructureError and ours are not."""
        del key
        given = self._parse(arguments)
        try:
            answer = await self._run(given)
        except (ToolMistake, InfrastructureError, EngineError):
            raise
        except Exception as error:
            raise ToolMistake(f"{type(error).__name__}: {error}") from error
        return answer if isinstance(answer, ToolAnswer) else ToolAnswer(text=_as_text(answer))

    def _parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            parsed = self._arguments.model_validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:
            raise ToolMistake(_told(error)) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolMistake(f"the arguments are no JSON object: {error}") from error
        return {name: getattr(parsed, name) for name in type(parsed).model_fields}

    async def _run(self, given: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(**given)
        return await _in_thread(lambda: self._function(**given))

    async def close(self) -> None:
        """What the tool's maker has to close."""
        if self._close is not None:
            answer = self._close()
            if inspect.isawaitable(answer):
                await answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """What a function's text says of it: how its arguments are checked, and what the policy is told."""

    arguments: type[BaseModel]
    parameters: Mapping[str, Any]
    description: str


def read_form(function: Callable[..., Any]) -> ToolForm:
    """The form of a function; of one function, and of the methods of one class, it is made once, not for every episode.

    Raises SpecError naming a parameter without a type.
    """
    if inspect.ismethod(function):
        return _known_form(function.__func__, is_method=True)
    read = _known_form if inspect.isfunction(function) else _read_form
    return read(function, is_method=False)


def _read_form(function: Callable[..., Any], *, is_method: bool) -> ToolForm:
    what = f"tool {getattr(function, '__name__', function)!r}"
    fields = _fields(function, what, is_method=is_method)
    try:
        made = create_model(
            "Arguments", __config__=ConfigDict(extra="forbid", strict=True), **fields
        )
        schema = made.model_json_schema()
    except Exception as error:  # what a type of the user's raises
        raise SpecError(f"{what}: its types cannot be written as a JSON schema: {error}") from error
    # Without titles, which say nothing that a name does not.
    return ToolForm(
        arguments=made, parameters=dict(_untitled(schema)), description=_description(function)
    )


_known_form = lru_cache(maxsize=FORMS_MAX)(_read_form)


def _fields(function: Callable[..., Any], what: str, *, is_method: bool) -> dict[str, Any]:
    """Type and default of each parameter that the policy gives."""
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())[is_method:]
    except (NameError, TypeError, ValueError) as error:
        raise SpecError(f"{what}: its signature cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for one in parameters:
        if one.kind in {one.VAR_KEYWORD, one.VAR_POSITIONAL, one.POSITIONAL_ONLY}:
            raise SpecError(f"{what}: {one} cannot be given by name; write each parameter out")
        if one.name not in hints:
            raise SpecError(
                f"{what}: parameter {one.name!r} has no type; write one, such as {one.name}: str"
            )
        fields[one.name] = (hints[one.name], ... if one.default is one.empty else one.default)
    return fields


def _description(function: Callable[..., Any]) -> str:
    written = inspect.getdoc(function) or ""
    return " ".join(written.split("\n\n", 1)[0].split())


def _untitled(schema: Any, *, names: bool = False) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: _untitled(value, names=key in {"properties", "$defs"} and not names)
            for key, value in schema.items()
            if names or key != "title"
        }
    return [_untitled(one) for one in schema] if isinstance(schema, list) else schema


def _told(error: ValidationError) -> str:
    parts = [
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg'].lower()}"
        for one in error.errors(include_url=False, include_input=False)
    ]
    return "wrong arguments: " + "; ".join(parts[:5])


def _as_text(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    try:
        return json.dumps(answer, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"a tool returned {type(answer).__name__}, expected text or what JSON can say: {error}"
        ) from error


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Call it in a thread of its own; one whose caller was cancelled is left to itself, and counted."""
    _hung.intersection_update([thread for thread in _hung if thread.is_alive()])
    if len(_hung) > HUNG_MAX:
        raise EngineError(
            f"{len(_hung)} calls of tools have never returned: this process is to be started afresh;"
            " give what tools wait for a deadline of its own"
        )
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    thread = threading.Thread(target=_work, args=(call, loop, answer), name="tool", daemon=True)
    thread.start()
    try:
        return await answer
    except asyncio.CancelledError:
        _hung.add(thread)
        raise


def _work(
    call: Callable[[], Any], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any]
) -> None:
    result, failure = None, None
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - it is the answer
        failure = error
    except BaseException as error:  # noqa: BLE001 - sys.exit in users' code ends no process of ours
        failure = RuntimeError(f"{type(error).__name__}: {error}")
    if not loop.is_closed():
        loop.call_soon_threadsafe(_tell, answer, result, failure)


def _tell(answer: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(result)

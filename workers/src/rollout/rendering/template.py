"""Chat templates: Jinja text to conversation text, in the sandbox and dialect that models expect.

The clock is not offered to templates (``strftime_now``): a prompt must not depend on the day it is
rendered, and the published templates have a fixed date to fall back on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollout.errors import SpecError
from rollout.turns import ToolSpec
from rollout.types import Message, ReasoningPart, ToolCall, ToolResult


class _GenerationTag(Extension):
    """Accepts ``{% generation %}...{% endgeneration %}`` and renders what is inside."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own class attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def compile_template(text: str) -> Template:
    """Compile Jinja text. Raises SpecError naming the line of a syntax error."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        autoescape=False,
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse  # pyrefly: ignore[unsupported-operation] - jinja's globals take any function
    try:
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise SpecError(f"chat template, line {error.lineno}: {error.message}") from error


def render_template(
    template: Template,
    messages: Sequence[Message],
    specials: Mapping[str, str],
    *,
    add_generation_prompt: bool,
    tools: Sequence[ToolSpec] = (),
) -> str:
    """The conversation as text, with its tools. Raises SpecError when the template refuses the messages."""
    try:
        return template.render(
            messages=[written for message in messages for written in _write(message)],
            add_generation_prompt=add_generation_prompt,
            tools=[_write_tool(tool) for tool in tools] or None,
            documents=None,
            **specials,
        )
    except TemplateError as error:
        roles = ", ".join(message.role for message in messages)
        raise SpecError(f"chat template refuses a conversation of [{roles}]: {error}") from error


def render_pair(template: Template, query: str, document: str, specials: Mapping[str, str]) -> str:
    """A query and a document as a model that ranks was shown them. Raises SpecError where the template refuses them."""
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    try:
        return template.render(messages=messages, **specials)
    except TemplateError as error:
        raise SpecError(f"chat template refuses a query and a document: {error}") from error


def _write(message: Message) -> Iterator[dict[str, Any]]:
    """A message as templates know it; each tool result is a message of its own."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    for one in results:
        named = {"tool_call_id": one.call_id, "name": one.name}
        yield {"role": message.role, "content": one.text, **named}
    if results:
        return
    written: dict[str, Any] = {"role": message.role, "content": message.text}
    thoughts = [part.text for part in message.parts if isinstance(part, ReasoningPart)]
    if thoughts:
        written["reasoning_content"] = "".join(thoughts)
    if message.calls:
        written["tool_calls"] = [_write_call(call) for call in message.calls]
    yield written


def _write_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": dict(call.arguments or {})}
    return {"id": call.call_id, "type": "function", "function": function}


def _write_tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}

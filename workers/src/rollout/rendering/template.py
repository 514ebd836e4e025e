"""Chat templates: Jinja text to conversation text, in the sandbox and dialect that models expect.

The clock is not offered to templates (``strftime_now``): a prompt must not depend on the day it is
rendered, and the published templates have a fixed date to fall back on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollout.errors import SpecError
from rollout.types import Message


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
) -> str:
    """The conversation as text. Raises SpecError when the template refuses the messages."""
    try:
        return template.render(
            messages=[{"role": m.role, "content": m.text} for m in messages],
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **specials,
        )
    except TemplateError as error:
        roles = ", ".join(message.role for message in messages)
        raise SpecError(f"chat template refuses a conversation of [{roles}]: {error}") from error

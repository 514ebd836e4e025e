"""From a model folder and ``model.chatTemplate`` to a renderer."""

from __future__ import annotations

from pathlib import Path

from rollout.errors import SpecError
from rollout.models.local_tokenizers import CHATML, LLAMA3
from rollout.rendering.chat import ChatRenderer, build_chat_renderer
from rollout.rendering.plain import PlainRenderer, build_plain_renderer
from rollout.rendering.template import compile_template
from rollout.rendering.tokenizer import ModelTokenizer, load_tokenizer

PLAIN = "plain"
BUILTIN_TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3}


def build_renderer(
    model_path: Path, chat_template: str | None = None
) -> ChatRenderer | PlainRenderer:
    """The renderer of a model folder.

    ``chat_template`` is ``plain``, ``chatml``, ``llama3``, Jinja text, or None for the model's own (and
    plain where it has none). Raises SpecError for a broken tokenizer or template, or when nothing in
    them could end a turn.
    """
    tokenizer = load_tokenizer(model_path)
    text = _choose(tokenizer, chat_template)
    if text is None:
        return build_plain_renderer(tokenizer)
    return build_chat_renderer(tokenizer, compile_template(text))


def _choose(tokenizer: ModelTokenizer, chat_template: str | None) -> str | None:
    if chat_template is None:
        return tokenizer.chat_template
    if chat_template == PLAIN:
        return None
    if chat_template in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[chat_template]
    if "{{" in chat_template or "{%" in chat_template:
        return chat_template
    raise SpecError(
        f"model.chatTemplate {chat_template!r}: expected {PLAIN}, "
        f"{', '.join(BUILTIN_TEMPLATES)}, or the text of a Jinja template"
    )

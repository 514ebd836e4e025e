"""From a model folder and ``model.chatTemplate`` to a renderer."""

from __future__ import annotations

from pathlib import Path

from rollout.models.templates import template_text
from rollout.rendering.chat import ChatRenderer, build_chat_renderer
from rollout.rendering.plain import PlainRenderer, build_plain_renderer
from rollout.rendering.template import compile_template
from rollout.rendering.tokenizer import ModelTokenizer, load_tokenizer
from rollout.rendering.vocabulary import require_own_tokenizer


def build_renderer(
    model_path: Path, chat_template: str | None = None
) -> ChatRenderer | PlainRenderer:
    """The renderer of a model folder.

    ``chat_template`` is ``plain``, ``chatml``, ``llama3``, Jinja text, or None for the model's own (and
    plain where it has none). Raises SpecError for a broken tokenizer or template, for the tokenizer of another
    model, or when nothing in them could end a turn.
    """
    tokenizer = load_tokenizer(model_path)
    require_own_tokenizer(tokenizer, model_path)
    text = _choose(tokenizer, chat_template)
    if text is None:
        return build_plain_renderer(tokenizer)
    return build_chat_renderer(tokenizer, compile_template(text), text)


def _choose(tokenizer: ModelTokenizer, chat_template: str | None) -> str | None:
    return tokenizer.chat_template if chat_template is None else template_text(chat_template)

"""``model.chatTemplate``: what may be written there, and how a model folder carries it to whoever loads it next."""

from __future__ import annotations

import json
from pathlib import Path

from rollout.errors import SpecError
from rollout.models.builtin.local_tokenizers import CHATML, LLAMA3

PLAIN = "plain"
BUILTIN_TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3}
TEMPLATE_FILE = "chat_template.jinja"


def template_text(chat_template: str) -> str | None:
    """The Jinja text that is meant; None for ``plain``. Raises SpecError for neither a name nor a template."""
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


def carry_template(folder: Path, chat_template: str) -> None:
    """Make it the folder's own template, in place, so that all who load the folder render as the run did.

    ``chat_template.jinja`` is read before the configuration's by transformers, vLLM and rollout; for
    ``plain`` both are taken away.
    """
    text = template_text(chat_template)
    if text is not None:
        (folder / TEMPLATE_FILE).write_text(text, encoding="utf-8")
        return
    (folder / TEMPLATE_FILE).unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.pop("chat_template", None) is not None:
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""What a model folder declares of its tokenizer beside the tokenizer itself: special tokens and the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import SpecError

TOKENIZER_FILE = "tokenizer.json"
SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTokens:
    """``specials`` maps ``bos_token``, ``eos_token``, ... to their text where there are some; ``chat_template`` is Jinja text."""

    specials: Mapping[str, str]
    chat_template: str | None


def read_declared(directory: Path) -> DeclaredTokens:
    """Read a folder's files. Raises SpecError for one that is no JSON."""
    config = _read_json(directory / "tokenizer_config.json")
    declared = {**_read_json(directory / "special_tokens_map.json"), **config}
    return DeclaredTokens(
        specials={
            name: text for name in SPECIALS if (text := _token_text(declared.get(name))) is not None
        },
        chat_template=_read_chat_template(directory, config),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise SpecError(f"{path} is not JSON: {error}") from error


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, Mapping) else value


def _read_chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """``chat_template.jinja``, or the ``chat_template`` of the configuration (text, or named texts)."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        return named.get("default")
    return found

"""Whether a folder's tokenizer is that of its model: every token has an embedding, and the model's end token is one of its."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.rendering.tokenizer import ModelTokenizer

FIX = "take the tokenizer files of this very model and revision, or resize its embeddings to the tokenizer and save both"


def require_own_tokenizer(tokenizer: ModelTokenizer, directory: Path) -> None:
    """Raise SpecError where the tokenizer cannot be that of the model in ``directory``, by its ``config.json``.

    A model may have more embeddings than there are tokens: sizes are rounded up. A folder without sizes is not judged.
    """
    config = _read(directory / "config.json")
    size = config.get("vocab_size")
    if not isinstance(size, int) or isinstance(size, bool):
        return
    backend = tokenizer.tokenizer
    last = max(
        backend.get_vocab_size(with_added_tokens=False) - 1,
        *backend.get_added_tokens_decoder(),
        0,
    )
    if last >= size:
        raise SpecError(
            f"model folder {directory}: its tokenizer does not match it: token {last} ({backend.id_to_token(last)!r}) is"
            f" beyond the model's {size} embeddings (vocab_size in config.json); {FIX}"
        )
    for end in _ends(config):
        if backend.id_to_token(end) is None:
            raise SpecError(
                f"model folder {directory}: its tokenizer does not match it: the model ends with token {end}"
                f" (eos_token_id in config.json), which this tokenizer of"
                f" {backend.get_vocab_size(with_added_tokens=True)} tokens does not have; {FIX}"
            )


def _ends(config: dict[str, Any]) -> Iterator[int]:
    said = config.get("eos_token_id")
    for one in said if isinstance(said, list) else [said]:
        if isinstance(one, int) and not isinstance(one, bool) and one >= 0:
            yield one


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # whoever needs the sizes says so
        return {}
    return found if isinstance(found, dict) else {}

"""A model folder's tokenizer: the ``tokenizers`` object, its special tokens and its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rollout.errors import DataError, SpecError
from rollout.rendering.declared import TOKENIZER_FILE, read_declared

SHOWN_MAX = 60
"""Characters of a text that an error shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """A tokenizer and what its configuration says.

    ``specials`` maps ``bos_token``, ``eos_token``, ... to their text where the model has them;
    ``chat_template`` is Jinja text or None; ``origin`` names the folder in messages.
    """

    tokenizer: Tokenizer
    specials: Mapping[str, str]
    chat_template: str | None
    origin: str

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ``text``; special tokens written in it are recognised, none are added.

        Raises DataError for a text that the vocabulary has no tokens for.
        """
        return self._encode(text, adds=False)

    def _encode(self, text: str, *, adds: bool) -> tuple[int, ...]:
        try:
            return tuple(self.tokenizer.encode(text, add_special_tokens=adds).ids)
        except Exception as error:  # the library has no class of its own for it
            raise DataError(
                f"the model's tokenizer cannot encode {text[:SHOWN_MAX]!r} ({error}): it has no tokens for some of"
                " it; change the data, or take a model that knows such text"
            ) from error

    def encode_whole(self, text: str) -> tuple[int, ...]:
        """Ids of ``text`` with the tokens that the tokenizer itself adds to every text. Raises DataError."""
        return self._encode(text, adds=True)

    def encode_pair(self, first: str, second: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of two texts as the tokenizer joins them, and of each id which text it is of (0, 1). Raises DataError."""
        try:
            joined = self.tokenizer.encode(first, second, add_special_tokens=True)
        except Exception as error:  # the library has no class of its own for it
            raise DataError(
                f"the model's tokenizer cannot encode {first[:SHOWN_MAX]!r} with {second[:SHOWN_MAX]!r}: {error}"
            ) from error
        return tuple(joined.ids), tuple(joined.type_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        """Whether the text of ``token_ids``, encoded again, is the same ids; special ones left out."""
        added = self.tokenizer.get_added_tokens_decoder()
        plain = tuple(t for t in token_ids if t not in added or not added[t].special)
        return self.encode(self.decode(plain)) == plain

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The texts of all tokens that are recognised in a text as one, special or not (``<tool_call>``)."""
        added = self.tokenizer.get_added_tokens_decoder()
        return tuple(token.content for token in added.values())

    def is_special(self, token_id: int) -> bool:
        """Whether a token is left out of texts."""
        added = self.tokenizer.get_added_tokens_decoder().get(token_id)
        return added is not None and added.special

    def special_id(self, name: str) -> int | None:
        """The id of ``eos_token`` and its like, or None when the model has none."""
        text = self.specials.get(name)
        if text is None:
            return None
        token_id = self.tokenizer.token_to_id(text)
        if token_id is None:
            raise SpecError(
                f"tokenizer of {self.origin}: {name} {text!r} is not in its vocabulary; correct "
                f"tokenizer_config.json"
            )
        return token_id

    @property
    def pad_id(self) -> int:
        """The padding id: the pad token, else the end token. Raises SpecError when it has neither."""
        pad = self.special_id("pad_token")
        pad = self.special_id("eos_token") if pad is None else pad
        if pad is None:
            raise SpecError(
                f"tokenizer of {self.origin} has neither a pad nor an end token; set pad_token or "
                f"eos_token in tokenizer_config.json"
            )
        return pad


def load_tokenizer(directory: Path) -> ModelTokenizer:
    """Read a model folder's tokenizer. Raises SpecError when there is none or it is broken."""
    declared = read_declared(directory)
    return ModelTokenizer(
        tokenizer=_load_backend(directory),
        specials=declared.specials,
        chat_template=declared.chat_template,
        origin=str(directory),
    )


def _load_backend(directory: Path) -> Tokenizer:
    path = directory / TOKENIZER_FILE
    if not path.is_file():
        return _convert(directory)
    try:
        found = Tokenizer.from_file(str(path))
    except Exception as error:
        raise SpecError(f"tokenizer {path} is broken: {error}") from error
    # Some files cut and pad every text by themselves: what is too long is to be told, not cut.
    found.no_truncation()
    found.no_padding()
    return found


def _convert(directory: Path) -> Tokenizer:
    """A tokenizer in an older format, through transformers."""
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise SpecError(
            f"model folder {directory} has no tokenizer.json and no other tokenizer that transformers "
            f"can convert ({str(error).splitlines()[0][:160]})"
        ) from error
    return loaded.backend_tokenizer

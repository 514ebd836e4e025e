"""From token ids to texts, where the tokenizer of a base lies on this machine; nothing is fetched or built for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout.console.views.tokens import load_tokenizer_of
from rollout.errors import RolloutError
from rollout.models.resolve import find_model_folder
from rollout.service.reading.finding import OpenedModel, base_uri

if TYPE_CHECKING:
    from tokenizers import Tokenizer

IDS_MAX = 400
"""Ids of which an excerpt shows the beginning or the end."""
TEXT_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTexts:
    """How texts of a base are had: by the tokenizer at ``place``, or not, and why (``said``)."""

    tokenizer: Tokenizer | None
    place: str
    said: str

    def text(self, ids: Sequence[int]) -> str | None:
        """All of it; None without a tokenizer, and for ids that are none of its."""
        if self.tokenizer is None:
            return None
        try:
            return self.tokenizer.decode(list(ids), skip_special_tokens=False)
        except OverflowError:
            return None

    def beginning(self, ids: Sequence[int]) -> str:
        """The first part, as text or as ids."""
        text = self.text(ids[:IDS_MAX])
        return (_ids(ids[:IDS_MAX]) if text is None else text)[:TEXT_MAX]

    def ending(self, ids: Sequence[int]) -> str:
        """The last part, as text or as ids."""
        text = self.text(ids[-IDS_MAX:])
        return (_ids(ids[-IDS_MAX:]) if text is None else text)[-TEXT_MAX:]


def find_texts(opened: OpenedModel) -> BaseTexts:
    """The tokenizer of a model's base. Raises LedgerError."""
    uri = base_uri(opened.book, opened.model)
    if uri is None:
        return BaseTexts(tokenizer=None, place="", said="the book does not say where the base is")
    try:
        folder = find_model_folder(uri)
    except RolloutError as error:
        return BaseTexts(tokenizer=None, place=uri, said=str(error))
    tokenizer = None if folder is None else load_tokenizer_of(folder)
    said = "" if tokenizer is not None else "its tokenizer is not on this machine"
    return BaseTexts(tokenizer=tokenizer, place=uri, said=said)


def _ids(ids: Sequence[int]) -> str:
    return " ".join(f"#{one}" for one in ids)

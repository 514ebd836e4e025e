"""Books and the models in them: by a model's id, or by the beginning of one that no other has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rollout.errors import SpecError
from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.reading.decoding import decode_thing
from rollout.service.registry import ServedBase, ServiceModel, base_id

BOOK = "calls.sqlite"
"""The book's name in a service's folder."""
SHOWN_MAX = 5
"""Ids that a refusal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model in its open book; ``folder`` is the service's. Leaving its ``with`` closes the book."""

    book: CallBookReader
    folder: Path
    model: ServiceModel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.book.close()


def has_book(folder: Path) -> bool:
    """Whether a service has kept a book there."""
    return (folder / BOOK).is_file()


def list_models(book: CallBookReader) -> Iterator[ServiceModel]:
    """The models of a book, oldest first. Raises LedgerError."""
    for found in book.things(ServiceModel.__name__):
        model = decode_thing(found)
        assert isinstance(model, ServiceModel)
        yield model


def open_model(folder: Path, given: str) -> OpenedModel | None:
    """The model that is meant; None where the book has none. Raises LedgerError, and SpecError where several are meant."""
    book = CallBookReader(folder / BOOK)
    try:
        model = _find(book, given)
    except BaseException:
        book.close()
        raise
    if model is None:
        book.close()
        return None
    return OpenedModel(book=book, folder=folder, model=model)


def open_by_id(folder: Path, model_id: str) -> OpenedModel | None:
    """The model of exactly this id, by the book's index; None where the book has none. Raises LedgerError."""
    book = CallBookReader(folder / BOOK)
    try:
        found = book.thing(ServiceModel.__name__, model_id)
        model = None if found is None else decode_thing(found)
    except BaseException:
        book.close()
        raise
    if not isinstance(model, ServiceModel):
        book.close()
        return None
    return OpenedModel(book=book, folder=folder, model=model)


def base_uri(book: CallBookReader, model: ServiceModel) -> str | None:
    """Where the base of a model was; None where the book does not say. Raises LedgerError."""
    found = book.thing(ServedBase.__name__, base_id(model.base, model.base_digest))
    if found is not None:
        place = decode_thing(found)
        assert isinstance(place, ServedBase)
        return place.uri
    return model.base if "://" in model.base else None


def _find(book: CallBookReader, given: str) -> ServiceModel | None:
    found: list[ServiceModel] = []
    for model in list_models(book):
        if model.id == given:
            return model
        if given and model.id.startswith(given) and len(found) < SHOWN_MAX:
            found.append(model)
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise SpecError(f"{given!r} is how several models' ids begin ({ids}): give more of it")
    return found[0] if found else None

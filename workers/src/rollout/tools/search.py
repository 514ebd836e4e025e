"""Search tools over a few documents: those of the row, or of a file that the run names. No network.

``search`` gives the best documents by BM25, cut; ``read`` one of them whole. Both are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.errors import DataError
from rollout.tools.bm25 import Bm25
from rollout.tools.contract import Tool, ToolAnswer, ToolMistake, ToolTraits
from rollout.tools.functions import FunctionTool
from rollout.tools.text import cut_text
from rollout.types import Row

RESULTS_MAX = 5
DOCUMENTS_MAX = 100_000
SHOWN_CHARACTERS = 600
READ_CHARACTERS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDocument:
    """One document; ``number`` is how it is read by the policy, from 1."""

    number: int
    title: str
    text: str


def read_documents(given: Any, what: str) -> tuple[SearchDocument, ...]:
    """Texts, or mappings with ``title`` and ``text`` (or MuSiQue's ``paragraph_text``). Raises DataError."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise DataError(f"{what}: expected a list of documents, got {given!r:.80}")
    if len(given) > DOCUMENTS_MAX:
        raise DataError(f"{what}: {len(given)} documents, at most {DOCUMENTS_MAX} are searched")
    return tuple(_document(one, place, what) for place, one in enumerate(given, start=1))


def _document(given: Any, number: int, what: str) -> SearchDocument:
    if isinstance(given, str):
        return SearchDocument(number=number, title="", text=given)
    if isinstance(given, Mapping):
        text = given.get("text", given.get("paragraph_text"))
        title = given.get("title", "")
        if isinstance(text, str) and isinstance(title, str):
            return SearchDocument(number=number, title=title, text=text)
    raise DataError(
        f"{what}, document {number}: expected text, or title and text; got {given!r:.80}"
    )


class SearchSource:
    """``field`` is the row's field with its documents, where ``documents`` are not given for all rows."""

    def __init__(
        self, *, field: str = "documents", documents: Sequence[SearchDocument] | None = None
    ) -> None:
        self._field = field
        self._shared = None if documents is None else SearchIndex(documents)
        self.specs = tuple(tool.spec for tool in _tools(SearchIndex(())))

    def open(self, row: Row) -> tuple[Tool, ...]:
        """Raises DataError for a row without documents."""
        if self._shared is not None:
            return _tools(self._shared)
        if self._field not in row:
            raise DataError(
                f"the row has no field {self._field!r} to search in; it has {', '.join(map(repr, row))}"
            )
        return _tools(SearchIndex(read_documents(row[self._field], f"field {self._field!r}")))


class SearchIndex:
    """The two tools over some documents."""

    def __init__(self, documents: Sequence[SearchDocument]) -> None:
        self._documents = documents
        self._index = Bm25([f"{one.title}. {one.text}" for one in documents])

    def search(self, query: str, k: int = 3) -> ToolAnswer:
        """Find the documents that match a query best; k says how many, up to 5."""
        if not 1 <= k <= RESULTS_MAX:
            raise ToolMistake(f"k: expected 1 to {RESULTS_MAX}, got {k}")
        found = [self._documents[place] for place in self._index.best(query, k)]
        shown = [_shown(one, SHOWN_CHARACTERS) for one in found]
        return ToolAnswer(text="\n\n".join(shown) or "nothing was found")

    def read(self, number: int) -> ToolAnswer:
        """Read one document whole, by its number."""
        if not 1 <= number <= len(self._documents):
            raise ToolMistake(f"number: there are documents 1 to {len(self._documents)}")
        return ToolAnswer(text=_shown(self._documents[number - 1], READ_CHARACTERS))


def _tools(index: SearchIndex) -> tuple[Tool, ...]:
    traits = ToolTraits(pure=True)
    return (FunctionTool(index.search, traits=traits), FunctionTool(index.read, traits=traits))


def _shown(document: SearchDocument, characters_max: int) -> str:
    title = f" {document.title}" if document.title else ""
    return f"[{document.number}]{title}\n{cut_text(document.text, characters_max)}"

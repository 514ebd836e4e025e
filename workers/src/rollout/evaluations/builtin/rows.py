"""Rows of a suite: from a file or the hub, in the part that is asked for, under the suite's own prompt.

Whole data is reported unless a share of it may select snapshots. Files are JSON lines with the data set's own fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.data.files import find_files
from rollout.data.hugging_face import DatasetName, open_dataset
from rollout.data.jsonl import open_jsonl
from rollout.data.rows.mapping import FieldMapping
from rollout.data.subset import SubsetSource, split_source
from rollout.errors import DataError
from rollout.evaluations.suites import Context
from rollout.models.files import default_cache_dir
from rollout.seams import DataSource
from rollout.types import Row

SELECTION_SHARE = 0.2
"""Of a test set beside training: the rest is only reported."""


@dataclass(frozen=True, slots=True)
class AskedSource:
    """Another source's rows, each with what ``ask`` makes of it; ``style`` is part of the digest."""

    inner: DataSource
    ask: Callable[[int, Row], Mapping[str, Any]]
    style: str

    @property
    def digest(self) -> str:
        """Of the rows and of how they are asked."""
        return f"{self.inner.digest}/{self.style}"

    def __len__(self) -> int:
        return len(self.inner)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions, with ``messages`` and ``prompt`` of the suite's."""
        found = self.inner.rows(positions)
        places = [self._place(position) for position in positions]
        return [{**row, **self.ask(place, row)} for place, row in zip(places, found, strict=True)]

    def _place(self, position: int) -> int:
        """Where the row lies in the whole data, on which drawn examples depend."""
        inner = self.inner
        return inner.positions[position] if isinstance(inner, SubsetSource) else position


def as_prompt(text: str) -> dict[str, Any]:
    """One user message, as rows hold it."""
    return {"messages": [{"role": "user", "content": text}], "prompt": text}


def open_rows(
    uri: str, hub: DatasetName | None, mapping: FieldMapping, context: Context, what: str
) -> DataSource:
    """A file's rows, or the hub's where no file is named. Raises DataError."""
    if uri:
        return open_jsonl(find_files(uri, context.base_dir, default_cache_dir()), mapping)
    if hub is None:
        raise DataError(f"{what}: there is no copy on the hub; name a file with the parameter uri")
    return open_dataset(hub, mapping)


def take_part(whole: DataSource, context: Context, selection_share: float | None) -> DataSource:
    """The rows of the context's split; all of them where nothing selects. Raises DataError when there are none."""
    share = selection_share
    if share is None:
        share = SELECTION_SHARE if context.trains else 0.0
    if share == 0 and context.split == "report":
        return whole
    return split_source(whole, 1.0, context.split, selection_share=share)

"""The rows of a batch, and the lines of its files that are none: each line is in exactly one of the two.

One pass over the files; memory is 64 bytes a good line and its reason for each bad one. Blank lines
are no rows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from blake3 import blake3

from rollout.data.batch_order import RowShapes, plan_order, prompt_text
from rollout.data.files import find_files, keep_lines
from rollout.data.hugging_face import DatasetName, read_dataset_lines
from rollout.data.jsonl import LINE_BYTES_MAX, number_lines, parse_line
from rollout.data.rows.lines import BadRequest
from rollout.data.rows.mapping import BadRecord, FieldMapping
from rollout.data.rows.requests import NUMBER, RequestBounds, read_request
from rollout.errors import DataError, DataNotFound
from rollout.models.files import default_cache_dir
from rollout.types import Row
from rollout_api.v1alpha1.data import Data, Jsonl
from rollout_api.v1alpha1.inference.infer import Infer

ROWS_MAX = 100_000
"""Rows of one batch; each is a task that the ledger holds from the start."""
REASON_CHARACTERS_MAX = 300
TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A line that is not answered, and why. ``number`` counts the rows of all files from 0."""

    number: int
    where: str
    code: str
    message: str
    custom_id: str | None = None


@dataclass(slots=True, kw_only=True)
class _Place:
    """Where the good rows of one file begin, by their position over all files."""

    path: Path
    first: int


@dataclass(slots=True, kw_only=True)
class _Index:
    """What one pass over the files finds."""

    places: list[_Place] = field(default_factory=list)
    starts: array[int] = field(default_factory=lambda: array("Q"))
    lines: array[int] = field(default_factory=lambda: array("Q"))
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    shapes: RowShapes = field(default_factory=RowShapes)
    refused: list[RefusedRow] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    num_rows: int = 0


class BatchSource:
    """Good rows by position; ``refused`` are the others. ``numbers[i]`` is the row number of position ``i``."""

    def __init__(
        self, index: _Index, mapping: FieldMapping, bounds: RequestBounds, digest: str
    ) -> None:
        self._index, self._mapping, self._bounds = index, mapping, bounds
        self._firsts = [place.first for place in index.places]
        self.digest = digest
        self.refused = tuple(index.refused)
        self.numbers: Sequence[int] = index.numbers
        self.num_rows = index.num_rows

    def __len__(self) -> int:
        return len(self._index.starts)

    def order(self) -> Sequence[int]:
        """All positions in the order in which rows are handed out (``batch_order``)."""
        return plan_order(self._index.shapes)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions, each with its number. Raises DataError when a file is not what it was."""
        return [{**self._read(position), NUMBER: self.numbers[position]} for position in positions]

    def where(self, position: int) -> str:
        """File and line of a row."""
        return f"{self._place(position).path.name}:{self._index.lines[position]}"

    def _place(self, position: int) -> _Place:
        return self._index.places[bisect_right(self._firsts, position) - 1]

    def _read(self, position: int) -> Row:
        path = self._place(position).path
        try:
            with path.open("rb") as file:
                file.seek(self._index.starts[position])
                record = parse_line(file.readline(LINE_BYTES_MAX))
            return read_request(self._mapping, record, self._bounds)
        except OSError as error:
            raise DataNotFound(f"{path}: cannot be read ({error.strerror or error})") from error
        except BadRecord as error:
            raise DataError(
                f"{path}: row {position} was good when the run began and is not now ({error}); the file"
                " was changed"
            ) from error


def open_batch(infer: Infer) -> BatchSource:
    """Look at every line of the run's data. Raises DataError for a batch without rows, or with too many."""
    fields = infer.data.jsonl or infer.data.hugging_face
    assert fields is not None, "the checks refuse other data"
    chosen = fields.answer_field != Jsonl.model_fields["answer_field"].default
    mapping = FieldMapping(
        prompt_field=fields.prompt_field,
        answer_field=fields.answer_field if chosen else None,
        messages_field=fields.messages_field,
        system_prompt=fields.system_prompt,
        template=fields.template,
    )
    bounds = RequestBounds(
        new_tokens_max=infer.sampling.new_tokens_max,
        num_samples=infer.samples_per_prompt,
        task=infer.task,
    )
    index, content = _Index(), blake3()
    named, paths = _files(infer.data, infer.max_prompts or ROWS_MAX + 1)
    for path in paths:
        _look_at(path, index, mapping, bounds, content, infer.max_prompts)
    if not index.num_rows:
        raise DataError(f"infer.data: {named} has no rows: it is empty")
    digest = f"blake3:{content.hexdigest()}"
    wanted = infer.data.jsonl.digest if infer.data.jsonl is not None else None
    if wanted is not None and digest != wanted:
        raise DataNotFound(f"data {named}: expected digest {wanted}, got {digest}")
    return BatchSource(index, mapping, bounds, digest)


def _files(data: Data, rows_max: int) -> tuple[str, Sequence[Path]]:
    """What the data is called, and its files of lines; the first rows of a data set are written to one in the cache."""
    if data.jsonl is not None:
        return data.jsonl.uri, find_files(data.jsonl.uri, Path(), default_cache_dir())
    found = data.hugging_face
    assert found is not None
    name = DatasetName(path=found.path, name=found.name, split=found.split, revision=found.revision)
    return str(name), [keep_lines(islice(read_dataset_lines(name), rows_max), default_cache_dir())]


def _look_at(
    path: Path,
    index: _Index,
    mapping: FieldMapping,
    bounds: RequestBounds,
    content: blake3,
    rows_max: int | None,
) -> None:
    index.places.append(_Place(path=path, first=len(index.starts)))
    try:
        for line, start, data in number_lines(path):
            content.update(data)
            if not data.strip() or index.num_rows == rows_max:
                continue
            if index.num_rows == ROWS_MAX:
                raise DataError(
                    f"infer.data: more than {ROWS_MAX} rows; split the data, or set infer.maxPrompts"
                )
            _take_line(index, f"{path.name}:{line}", data, mapping, bounds, (line, start))
            index.num_rows += 1
    except OSError as error:
        raise DataNotFound(
            f"data file {path} cannot be read ({error.strerror or error})"
        ) from error


def _take_line(
    index: _Index,
    where: str,
    data: bytes,
    mapping: FieldMapping,
    bounds: RequestBounds,
    place: tuple[int, int],
) -> None:
    try:
        row = read_request(mapping, parse_line(data), bounds)
        _remember_id(row, index.ids)
    except BadRecord as error:
        own = error if isinstance(error, BadRequest) else BadRequest("invalid_row", str(error))
        index.refused.append(
            RefusedRow(
                number=index.num_rows,
                where=where,
                code=own.code,
                message=str(own)[:REASON_CHARACTERS_MAX],
                custom_id=own.custom_id,
            )
        )
        return
    index.lines.append(place[0])
    index.starts.append(place[1])
    index.numbers.append(index.num_rows)
    sampling = row.get("sampling") or {}
    new_tokens = sampling.get("max_new_tokens", bounds.new_tokens_max)
    index.shapes.add(prompt_text(row), new_tokens)


def _remember_id(row: Mapping[str, object], known: set[str]) -> None:
    found = row.get("custom_id")
    if not isinstance(found, str):
        return
    if found in known:
        raise BadRequest(
            "duplicate_custom_id", f"custom_id {found!r:.80} is on an earlier line", found
        )
    known.add(found)

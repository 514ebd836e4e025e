"""Hugging Face data sets: loaded whole, or streamed in order with a bounded look-ahead.

A stream is read forwards and its rows are asked for block by block (``cursor.DataOrder.window``), so a
resumed run skips to its block and goes on with exactly the rows that were due.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from blake3 import blake3

from rollout.common.hub import expected_errors, judge
from rollout.data.packed.lines import as_line, plain
from rollout.data.records import BadRecords, OnBadRecord
from rollout.data.rows.mapping import BadRecord, FieldMapping, map_record
from rollout.errors import DataError, DataNotFound, RolloutError
from rollout.models.hub.one_file import pin_data
from rollout.models.hub.refusals import HubQuestion, ask_for_access, known_cause
from rollout.types import Row

_COMMIT = re.compile(r"[0-9a-f]{40}")
STREAM_WINDOW = 1024
"""Rows shuffled together, and kept in memory, when streaming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetName:
    """What ``datasets.load_dataset`` takes: a hub name or a folder, and what to read of it."""

    path: str
    name: str | None = None
    split: str = "train"
    revision: str | None = None

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        config = f"/{self.name}" if self.name else ""
        return f"data set {self.path}{at}{config}, split {self.split}"


class ArrowSource:
    """Rows of a data set that lies on this machine. ``bad`` tells what was left out."""

    def __init__(
        self,
        dataset: Any,
        kept: Sequence[int],
        mapping: FieldMapping,
        *,
        bad: BadRecords,
        digest: str,
    ) -> None:
        self._dataset = dataset
        self._kept = kept
        self._mapping = mapping
        self.bad = bad
        self.digest = digest

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions."""
        kept = [self._kept[position] for position in positions]
        return [map_record(self._mapping, jsonable(self._dataset[index])) for index in kept]


class StreamSource:
    """Rows of a stream, one window in memory; asking for an earlier window starts it again."""

    window = STREAM_WINDOW

    def __init__(
        self, records: Any, length: int, mapping: FieldMapping, *, on_bad: OnBadRecord, digest: str
    ) -> None:
        self._records = records
        self._length = length
        self._mapping = mapping
        self._on_bad: OnBadRecord = on_bad
        self._block: list[Row] = []
        self._start = 0
        self._ahead: Iterator[Row] = iter(())
        self._next = -1
        self.bad = BadRecords()
        self.digest = digest

    def __len__(self) -> int:
        return self._length

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions. Raises DataError when the stream ends early."""
        return [self._row(position) for position in positions]

    def _row(self, position: int) -> Row:
        if not 0 <= position - self._start < len(self._block):
            self._seek(position - position % self.window)
        return self._block[position - self._start]

    def _seek(self, start: int) -> None:
        if self._next < 0 or start < self._next:
            self._ahead, self._next = self._good_rows(), 0
        while self._next < start and next(self._ahead, None) is not None:
            self._next += 1
        size = min(self.window, self._length - start)
        self._block = list(islice(self._ahead, size))
        self._start, self._next = start, start + len(self._block)
        if len(self._block) < size:
            raise DataError(
                f"the stream ended after {self._next} of {self._length} rows; it is not what it was "
                f"when the run began"
            )

    def _good_rows(self) -> Iterator[Row]:
        self.bad = BadRecords()
        for index, record in enumerate(_read(self._records)):
            try:
                yield map_record(self._mapping, jsonable(record))
            except BadRecord as error:
                self.bad.add(f"record {index}", str(error))
                self.bad.settle("the stream", 1, self._on_bad)


def open_dataset(
    name: DatasetName, mapping: FieldMapping, *, on_bad: OnBadRecord = "Fail"
) -> ArrowSource:
    """Load a data set and check every record. Raises DataError."""
    dataset = _load(name, streaming=False)
    _require_revision(dataset, name)
    kept, bad, content = [], BadRecords(), blake3()
    for index, record in enumerate(dataset):
        plain = jsonable(record)
        content.update(_canonical(plain))
        try:
            map_record(mapping, plain)
            kept.append(index)
        except BadRecord as error:
            bad.add(f"record {index}", str(error))
    bad.settle(str(name), len(kept), on_bad)
    digest = f"blake3:{content.hexdigest()}"
    return ArrowSource(dataset, kept, mapping, bad=bad, digest=digest)


def read_dataset_lines(name: DatasetName) -> Iterator[bytes]:
    """Its rows as lines of JSON, in their order (``packed.lines``). Raises DataError."""
    dataset = _load(name, streaming=False)
    _require_revision(dataset, name)
    for index in range(len(dataset)):
        yield as_line(lambda index=index: dataset[index])


def open_stream(
    name: DatasetName, mapping: FieldMapping, *, on_bad: OnBadRecord = "Fail"
) -> StreamSource:
    """Open a data set for reading in order.

    Its length comes from the data set's own description; where that is silent, or bad records are
    skipped, the stream is read through once to count. Raises DataError.
    """
    name = _pinned(name)
    records = _load(name, streaming=True)
    digest = f"blake3:{blake3(_canonical(_identity(name, records))).hexdigest()}"
    length = _declared_length(records, name.split) if on_bad == "Fail" else None
    if length is None:
        length = _count(records, name, mapping, on_bad)
    if length == 0:
        raise DataError(f"{name} has no usable record")
    return StreamSource(records, length, mapping, on_bad=on_bad, digest=digest)


def _pinned(name: DatasetName) -> DatasetName:
    """The same at one commit, where the hub tells it: a stream is opened again, and is to be what it was."""
    if Path(name.path).exists():
        return name
    return replace(name, revision=pin_data(name.path, name.revision))


def _read(records: Iterable[Any]) -> Iterator[Any]:
    """Records of a stream. Raises HubUnreachable, or DataError, where it breaks off."""
    num_read = 0
    try:
        for record in records:
            num_read += 1
            yield record
    except expected_errors() as error:
        kind = judge(error, DataError)
        raise kind(
            f"the stream broke off after {num_read} records ({str(error).strip()[:160] or type(error).__name__});"
            f" the rows before it are not lost: begin again when the hub answers"
        ) from error


def _count(records: Any, name: DatasetName, mapping: FieldMapping, on_bad: OnBadRecord) -> int:
    bad, num_good = BadRecords(), 0
    for index, record in enumerate(_read(records)):
        try:
            map_record(mapping, jsonable(record))
            num_good += 1
        except BadRecord as error:
            bad.add(f"record {index}", str(error))
    bad.settle(str(name), num_good, on_bad)
    return num_good


def _declared_length(records: Any, split: str) -> int | None:
    declared = (records.info.splits or {}).get(split)
    return declared.num_examples or None if declared is not None else None


def _identity(name: DatasetName, records: Any) -> dict[str, Any]:
    """What names the data: for a folder its files' bytes, for the hub its commit."""
    folder = Path(name.path)
    if folder.is_dir():
        files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
        digests = {str(p.relative_to(folder)): blake3().update_mmap(p).hexdigest() for p in files}
        return {"files": digests, "name": name.name, "split": name.split}
    commit = name.revision or str(records.info.version)
    return {"path": name.path, "commit": commit, "name": name.name, "split": name.split}


def _load(name: DatasetName, *, streaming: bool) -> Any:
    import datasets

    datasets.config.TORCH_AVAILABLE = False  # else iterating imports torch, seconds and 200 MB
    datasets.disable_progress_bars()
    try:
        if (Path(name.path) / "state.json").is_file() and not streaming:
            return datasets.load_from_disk(name.path)
        return datasets.load_dataset(
            name.path,
            name.name,
            split=name.split,
            revision=name.revision,
            streaming=streaming,
        )
    except (*expected_errors(), ValueError, datasets.exceptions.DatasetsError) as error:
        raise _refuse(name, error) from error


def _refuse(name: DatasetName, error: Exception) -> RolloutError:
    import datasets

    offline = datasets.config.HF_HUB_OFFLINE
    asked = HubQuestion(kind="data", repo=name.path, revision=name.revision, offline=offline)
    known = known_cause(asked, error, DataNotFound)
    if known is None and isinstance(error, datasets.exceptions.DatasetNotFoundError):
        known = ask_for_access(asked, DataNotFound)  # the library has dropped what the hub said
    if known is not None:
        return known
    kind = judge(error, DataNotFound, offline=offline)
    said = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return kind(
        f"{name} cannot be loaded: {said}. A data set of the hub must be in the cache (HF_HOME) when there is no network."
    )


def _require_revision(dataset: Any, name: DatasetName) -> None:
    """Raise DataNotFound where the library took another commit from its cache than was asked for: the newest that it has."""
    if name.revision is None or Path(name.path).exists():
        return
    wanted = pin_data(name.path, name.revision) or ""
    folders = {Path(one["filename"]).parent.name for one in dataset.cache_files}
    found = sorted(one for one in folders if _COMMIT.fullmatch(one))
    if _COMMIT.fullmatch(wanted) and any(one != wanted for one in found):
        raise DataNotFound(
            f"{name} is not in the cache: what is there is of commit {found[0]}, and the hub did not give {wanted};"
            f" download that once where there is a network, or name the commit that is there"
        )


def jsonable(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record in JSON values only: rows travel between processes. Raises BadRecord."""
    try:
        return json.loads(json.dumps(record, default=plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadRecord(f"cannot be written as JSON: {error}") from error


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

"""The end of an inference run: its rows, as the ledger has them, in two files, and then its outcome.

Nothing in the files is of this moment or of this machine: whoever writes them, and however often, writes the same
bytes. They are made beside their place and renamed, the errors first: who sees results sees all of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rollout.common.atomic_files import fsync_folder
from rollout.coordinator.batch_run import (
    BATCH,
    BatchRows,
    infer_of,
    results_bucket,
    results_folder,
)
from rollout.coordinator.context import ResultCounts, RunContext
from rollout.coordinator.duties.result_files import (
    NAMES,
    Form,
    encode_line,
    open_results,
    write_error,
)
from rollout.coordinator.rules.evaluation import name_task
from rollout.data.batch import RefusedRow
from rollout.data.rows.requests import NUMBER
from rollout.errors import SpecError, StoreError
from rollout.ledger.opening import open_reader
from rollout.ledger.sql.reader import Reader
from rollout.ledger.views import SampleView
from rollout.objects.bucket_files import BucketFiles, open_bucket_files
from rollout.types import Row
from rollout_api.worker import WorkerConfig

log = logging.getLogger(__name__)

ERRORS = "errors.jsonl"
ROWS_AT_ONCE = 256
FAILED = "engine_failed"
TOO_MANY_FAILED = "TooManyFailedRows"


async def finish_batch(run: RunContext) -> None:
    """Write the files once every row has ended, and then the outcome; a next life does what is missing.

    A place that takes nothing is tried again with every look, for ``limits.noProgressSeconds``.
    """
    state, plan = run.state, run.plan.infer
    assert plan is not None
    assert run.results is not None
    if state.version is None or state.pending_evaluations():
        return
    try:
        counts = await asyncio.to_thread(run.results)
    except StoreError as error:
        await run.meet_lost_place(error)
        return
    run.unwritten = None
    said = f"{counts.num_rows} rows, {counts.num_failed} failed, {counts.num_tokens} tokens"
    if counts.num_failed > plan.failed_ratio_max * counts.num_rows:
        bound = f"infer.maxFailedRatio is {plan.failed_ratio_max:g}"
        await run.end("Failed", TOO_MANY_FAILED, f"{said}: {bound}; see {counts.place}/{ERRORS}")
    else:
        await run.end("Succeeded", "Finished", f"{said}; results in {counts.place}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWriter:
    """Writes both files from the ledger."""

    config: WorkerConfig
    rows: BatchRows
    folder: Path
    logprobs: bool
    bucket: BucketFiles | None = None
    form: Form = "Jsonl"

    @property
    def results(self) -> str:
        """Name of the file with the answers."""
        return NAMES[self.form]

    def __call__(self) -> ResultCounts:
        """Write and count. Raises StoreError or LedgerError."""
        layout, uid = self.config.layout, self.config.run.uid
        with open_reader(self.config.spec.storage, Path(layout.ledger_path), uid) as reader:
            try:
                counts = self._write(reader)
            except OSError as error:
                raise StoreError(f"results cannot be written to {self.folder}: {error}") from error
        if self.bucket is not None:
            for name in (ERRORS, self.results):
                self.bucket.write(name, self.folder / name)
        return counts

    def _write(self, reader: Reader) -> ResultCounts:
        self.folder.mkdir(parents=True, exist_ok=True)
        num_failed = num_tokens = 0
        place, num_rows = self.folder, self.rows.source.num_rows
        with _beside(place / ERRORS) as errors, _beside(place / self.results) as results:
            answered = open_results(
                self.form, results, logprobs=self.logprobs, task=infer_of(self.config).task
            )
            for refused in self._entries(reader):
                if isinstance(refused, RefusedRow):
                    errors.write(encode_line(write_error(refused)))
                    num_failed += 1
                else:
                    row, number, samples = refused
                    num_tokens += sum(one.num_tokens for one in samples)
                    answered.write(row, number, samples)
            answered.close()
            for file in (errors, results):
                file.flush()
                os.fsync(file.fileno())
            for name in (ERRORS, self.results):
                _staged(place / name).replace(place / name)
        fsync_folder(self.folder)
        log.info("results written folder=%s failed=%d", self.folder, num_failed)
        return ResultCounts(
            num_rows=num_rows,
            num_failed=num_failed,
            num_tokens=num_tokens,
            place=str(self.folder) if self.bucket is None else self.bucket.place,
        )

    def _entries(
        self, reader: Reader
    ) -> Iterator[RefusedRow | tuple[Row, int, Sequence[SampleView]]]:
        """Every row of the data once, in its order."""
        refused = iter(self.rows.refused)
        next_refused = next(refused, None)
        for entry in self._asked(reader):
            number = entry.number if isinstance(entry, RefusedRow) else entry[1]
            while next_refused is not None and next_refused.number < number:
                yield next_refused
                next_refused = next(refused, None)
            yield entry
        if next_refused is not None:
            yield next_refused
        yield from refused

    def _asked(
        self, reader: Reader
    ) -> Iterator[RefusedRow | tuple[Row, int, Sequence[SampleView]]]:
        places = self.rows.in_file_order()
        for start in range(0, len(places), ROWS_AT_ONCE):
            part = places[start : start + ROWS_AT_ONCE]
            names = [name_task(*BATCH, 0, 0, place) for place in part]
            found = reader.samples_of(names)
            rows = self.rows.evaluation(*BATCH, part)
            for place, name, row in zip(part, names, rows, strict=True):
                if name in found:
                    yield row, row[NUMBER], found[name]
                else:
                    yield self._failed(place, row, reader.last_failure(name))

    def _failed(self, place: int, row: Row, said: str) -> RefusedRow:
        return RefusedRow(
            number=row[NUMBER],
            where=self.rows.source.where(self.rows.asked[place]),
            code=FAILED,
            message=said or "every worker that tried it was lost",
            custom_id=row.get("custom_id"),
        )


def require_free(config: WorkerConfig) -> None:
    """Raise SpecError where the results of another run lie, before anything is sampled.

    Raises PlaceUnreachable where a bucket takes nothing.
    """
    bucket, name = open_results_bucket(config), NAMES[_form(config)]
    if bucket is not None and name in bucket.names():
        raise SpecError(_taken(f"{bucket.place}/{name}"))
    if bucket is not None:
        bucket.require()
        return
    found = results_folder(config) / name
    if found.exists():
        raise SpecError(_taken(str(found)))


def _taken(place: str) -> str:
    return (
        f"spec.infer.output.uri: {place} is there already, of another run; move it away, or name"
        " another place"
    )


def open_results_bucket(config: WorkerConfig) -> BucketFiles | None:
    """The bucket that results go to, if they do. Raises SpecError."""
    uri, storage = results_bucket(config), config.spec.storage
    if uri is None:
        return None
    if storage is None:
        return open_bucket_files(uri, endpoint=None, region=None)
    return open_bucket_files(
        uri, endpoint=storage.endpoint, region=storage.region, kms_key=storage.kms_key
    )


def build_results_writer(config: WorkerConfig, rows: BatchRows) -> BatchWriter:
    """What writes the files of this run."""
    return BatchWriter(
        config=config,
        rows=rows,
        folder=results_folder(config),
        logprobs=infer_of(config).logprobs,
        bucket=open_results_bucket(config),
        form=_form(config),
    )


def _form(config: WorkerConfig) -> Form:
    output = infer_of(config).output
    return "Jsonl" if output is None else output.format


def _staged(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    """A file beside its place; whoever writes renames it. Nothing of it stays after an error."""
    staged = _staged(path)
    try:
        with staged.open("wb") as file:
            yield file
    finally:
        staged.unlink(missing_ok=True)

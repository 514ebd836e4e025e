"""An export to a bucket, which has no rename: the file that makes a folder a model goes up last but one, its lineage last.

``rollout_exporting.json`` goes up first and away at the end. It says which files of which bytes are on their way: who
finds it with the very same content goes on where a killed export was; anything else that is there is refused by name.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from rollout.errors import SpecError, StoreError
from rollout.models.files import scratch_dir
from rollout.objects.bucket_files import BucketFiles
from rollout.runs.export.adapter import ADAPTER_CONFIG
from rollout.runs.export.base import CONFIG
from rollout.runs.export.export import Export, Exported, export_model, plan_export
from rollout.runs.export.lineage import (
    LINEAGE_BYTES_MAX,
    Lineage,
    encode_lineage,
    parse_lineage,
)
from rollout.runs.export.writing import CARD
from rollout.runs.pipeline import LINEAGE_FILE

MARKER = "rollout_exporting.json"
HEADS = (CONFIG, ADAPTER_CONFIG)
"""Without these no loader takes a folder for a model."""


def export_to_bucket(run: Path, files: BucketFiles, export: Export) -> Exported:
    """Write the weights of the run in the folder ``run`` to a bucket, by way of this machine's scratch folder.

    Raises SpecError, and StoreError.
    """
    files.require()
    plan = plan_export(run, export)
    there = files.names()
    if LINEAGE_FILE in there:
        found, was_there = _already(files, there, plan.lineage), True
    else:
        _require_free(files, there)
        found, was_there = _export(run, files, export, there), False
    return Exported(
        folder=files.place, lineage=found, last_step=plan.chosen.last_step, was_there=was_there
    )


def _export(run: Path, files: BucketFiles, export: Export, there: Sequence[str]) -> Lineage:
    with _staging(f"{run} {files.place} {export}") as folder:
        exported = export_model(run, folder / "model", export)
        _upload(files, folder / "model", exported.lineage, there)
        shutil.rmtree(folder / "model")
    return exported.lineage


@contextmanager
def _staging(subject: str) -> Iterator[Path]:
    """A folder that a repeat of the same export finds again; one process's at a time."""
    folder = scratch_dir() / "exports" / blake3(subject.encode()).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(
                f"{folder}: another process exports this to the same place now; wait for it"
            ) from None
        yield folder


def _already(files: BucketFiles, there: Sequence[str], described: Lineage) -> Lineage:
    data = files.read(LINEAGE_FILE, LINEAGE_BYTES_MAX)
    found = parse_lineage(data or b"", f"{files.place}/{LINEAGE_FILE}")
    if found.subject != described.subject:
        raise SpecError(
            f"--to {files.place}: it holds the {found.form} weights of run {found.run}, step {found.step},"
            f" in {found.dtype}; name another place"
        )
    if lost := sorted(set(found.files).difference(there)):
        raise SpecError(
            f"--to {files.place}: it holds these very weights, but {lost[0]} is missing; delete what is"
            " there and export again"
        )
    files.delete(MARKER)
    return found


def _require_free(files: BucketFiles, there: Sequence[str]) -> None:
    if there and MARKER not in there:
        raise SpecError(
            f"--to {files.place}: something else is there ({there[0]}); name a place that is empty"
        )


def _upload(files: BucketFiles, folder: Path, lineage: Lineage, there: Sequence[str]) -> None:
    content = encode_lineage(lineage)
    if MARKER in there and files.read(MARKER, LINEAGE_BYTES_MAX) != content:
        raise SpecError(
            f"--to {files.place}: an export of something else was begun there and has not ended; delete"
            " what is there, or name another place"
        )
    names = [*sorted(set(lineage.files).difference(HEADS)), CARD]
    names += [name for name in HEADS if name in lineage.files]
    if foreign := sorted(set(there).difference(names, (MARKER,))):
        raise StoreError(
            f"--to {files.place}: {foreign[0]} is none of the export's files; delete it"
        )
    files.write(MARKER, content)
    for name in names:
        files.write(name, folder / name)
    files.write(LINEAGE_FILE, content)
    files.delete(MARKER)

"""What is kept of processes that ended badly or did not move: files of the run's folder, and objects that its ledger names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollout.errors import SpecError, StoreError
from rollout.objects.opening import open_place
from rollout.objects.reading import ObjectFiles
from rollout.report.gather import open_ledger, read_config, read_storage
from rollout.seams import ObjectSource

FOLDER = "evidence"
FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece: of whom, when (seconds since 1970), at which moment, and where its text lies."""

    name: str
    worker: str
    at: float
    moment: str
    size_bytes: int
    place: str


def list_evidence(run_dir: Path) -> list[Piece]:
    """Every piece, oldest first. Raises LedgerError when the folder is no run."""
    with open_ledger(run_dir) as ledger:
        events = ledger.evidence()
    found = [_of_file(file) for file in sorted((run_dir / FOLDER).glob("*.txt"))]
    for number, event in enumerate(events, 1):
        worker = event.message.partition("/")[2]
        found.append(
            Piece(
                name=f"{worker}-{number}",
                worker=worker,
                at=event.at,
                moment=str(event.data["moment"]),
                size_bytes=int(event.data["bytes"]),
                place=str(event.data["object"]),
            )
        )
    return sorted(found, key=lambda piece: piece.at)


def read_evidence(run_dir: Path, name: str) -> str:
    """The text of one piece. Raises SpecError for a name there is none of, StoreError for a text that is gone."""
    known = {piece.name: piece for piece in list_evidence(run_dir)}
    if name not in known:
        shown = ", ".join(known) or "nothing"
        raise SpecError(f"there is no evidence called {name!r} here: there is {shown}")
    place = known[name].place
    path = Path(place) if place.startswith("/") else _objects(run_dir).path(place)
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise StoreError(f"{name} cannot be read: {error}") from error


def _of_file(file: Path) -> Piece:
    stat = file.stat()
    return Piece(
        name=file.stem,
        worker=file.stem,
        at=stat.st_mtime,
        moment=_moment(file.stem),
        size_bytes=stat.st_size,
        place=str(file.absolute()),
    )


def _moment(name: str) -> str:
    """What the file's name says: the supervisor's are numbered or told, a coordinator's pod's are neither."""
    if name.endswith("-told"):
        return "told"
    return "stuck" if name[:2].isdigit() else "failed"


def _objects(run_dir: Path) -> ObjectSource:
    config = read_config(run_dir)
    place = read_storage(run_dir, config)
    if place is None or place.uri is None:
        return ObjectFiles(run_dir / "objects")
    return open_place(place, config["run"]["uid"], run_dir / "objects")

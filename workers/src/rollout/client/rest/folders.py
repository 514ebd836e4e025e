"""A folder out of an archive: whole or not there, and nothing outside of it."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from rollout.client.errors import UnansweredError


def unpack(archive: Path, target: Path) -> None:
    """Make ``target`` of the one folder in a tar. Raises UnansweredError for what is none, FileExistsError, OSError."""
    with TemporaryDirectory(dir=archive.parent) as place:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(place, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise UnansweredError(f"the archive is damaged: {error}; ask again") from error
        found = list(Path(place).iterdir())
        if len(found) != 1 or not found[0].is_dir():
            raise UnansweredError(
                f"the archive is no folder: it holds {len(found)} entries; is this the service?"
            )
        if target.exists():
            raise FileExistsError(f"{target} was made by somebody else meanwhile")
        shutil.move(found[0], target)

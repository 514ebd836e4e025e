"""What is released is one commit: its files as Git has them, whatever else lies in the checkout."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from release.errors import ReleaseError

GIT_SECONDS = 120.0
STATUS_LINES_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a release is made from."""

    revision: str
    """All 40 digits."""
    epoch_seconds: int
    """When it was committed, which is when everything in the release was made."""

    @property
    def created(self) -> str:
        """The time as OCI and CycloneDX write it."""
        return datetime.fromtimestamp(self.epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_commit(checkout: Path) -> Commit:
    """The commit that the checkout stands on.

    Raises:
        ReleaseError: no Git checkout, or files that differ from the commit.
    """
    changed = _git(checkout, "status", "--porcelain").splitlines()
    if changed:
        named = ", ".join(line[3:] for line in changed[:STATUS_LINES_MAX])
        raise ReleaseError(f"{checkout}: not as committed: {named}; commit or remove it first")
    revision, epoch = _git(checkout, "log", "-1", "--format=%H %ct").split()
    return Commit(revision=revision, epoch_seconds=int(epoch))


def export(checkout: Path, commit: Commit, target: Path) -> None:
    """Write the commit's files, with the modes that Git keeps and no others.

    Raises:
        ReleaseError: Git could not.
    """
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    _git(checkout, "-c", "tar.umask=022", "archive", "--output", str(archive), commit.revision)
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    archive.unlink()


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

"""Builds the three wheels: the same bytes from the same commit, setuptools and zlib, without network."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from release.errors import ReleaseError
from release.source import Commit
from release.versions import DISTRIBUTIONS

BUILD_SECONDS = 300.0
BACKEND = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
"""The backend that each pyproject.toml names, as PEP 517 has it called."""
METADATA_BYTES_MAX = 1 << 20


def build_wheels(tree: Path, target: Path, commit: Commit) -> list[Path]:
    """The wheels of an exported commit, by name.

    Raises:
        ReleaseError: setuptools could not, with the end of what it said.
    """
    target.mkdir(parents=True)
    # a wheel keeps the modes of its files: those of the export, of what the backend makes by this umask
    command = ["sh", "-c", 'umask 022 && exec "$@"', "sh", sys.executable, "-c", BACKEND]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "SOURCE_DATE_EPOCH": str(commit.epoch_seconds),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    for name in DISTRIBUTIONS:
        done = subprocess.run(
            [*command, str(target.resolve())],
            cwd=tree / name,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise ReleaseError(f"{name}: no wheel could be built:\n{said}")
    return sorted(target.glob("*.whl"))


def read_version(wheel: Path) -> str:
    """The version that a wheel's metadata says; empty where it says none.

    Raises:
        ReleaseError: it is no wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as opened:
            (name,) = (one for one in opened.namelist() if one.endswith(".dist-info/METADATA"))
            with opened.open(name) as metadata:
                text = metadata.read(METADATA_BYTES_MAX).decode()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ReleaseError(f"{wheel.name}: no wheel that can be read: {error}") from error
    head = text.partition("\n\n")[0].splitlines()
    found = [line.partition(": ")[2] for line in head if line.startswith("Version: ")]
    return found[0] if len(found) == 1 else ""

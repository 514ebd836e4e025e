"""Where a service keeps tensors: names of folders and files, for those who read them without loading torch."""

from __future__ import annotations

from pathlib import Path

WEIGHTS, STATES, ANCHORS = "weights", "states", "anchors"
"""Folders in a service's own."""
SUFFIX = ".safetensors"


def tensor_file(folder: Path, digest: str) -> Path:
    """The file of the tensors of a digest."""
    return folder / f"{digest.replace(':', '-')}{SUFFIX}"

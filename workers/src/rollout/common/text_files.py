"""Small text files that readers see whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replace a file's content at once. Not flushed to the disk: what must survive a power cut is an object.

    Raises OSError, and leaves nothing beside the file.
    """
    work = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        work.write_text(text, encoding="utf-8")
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)

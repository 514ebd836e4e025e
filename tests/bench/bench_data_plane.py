"""What the data plane costs beside the raw calls it is made of. One section a file ``data_plane_<name>.py``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from figures import Figure

PREFIX = "data_plane_"


def measure(*sections: str) -> Iterator[Figure]:
    """All sections, or those that are named."""
    there = sorted(path.stem for path in Path(__file__).parent.glob(f"{PREFIX}*.py"))
    for module in [f"{PREFIX}{name}" for name in sections] or there:
        yield from importlib.import_module(module).measure()

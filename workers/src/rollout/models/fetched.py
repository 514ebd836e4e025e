"""Where copies of what lies in buckets and on the web are kept on this machine, by the URI they were fetched from.

Only the form of the cache is here, so that whoever reads data or a model finds a copy without a network and without
credentials; ``rollout.runs.fetching`` makes the copies. A copy is named by its bytes: a newer one stands beside it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from blake3 import blake3

BUCKETS = frozenset({"s3", "gs"})
FETCHED = frozenset({*BUCKETS, "https"})
"""Schemes of places that are not read where they lie."""
POINTER_BYTES_MAX = 1 << 16
PLACED_VARIABLE = "ROLLOUT_PLACED_FILES"
"""The folder of all copies where another container of the pod has made them, and this process only reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A copy. ``tag`` is what the place called these bytes, ``digest`` what the manifest expected of them, or empty."""

    uri: str
    tag: str
    digest: str
    path: Path


def is_fetched(uri: str) -> bool:
    """Whether what the URI names has to be fetched before it is read."""
    return urlsplit(uri).scheme in FETCHED


def root_of(cache_dir: Path) -> Path:
    """The folder of all copies."""
    return cache_dir / "fetched"


def pointer_of(uri: str, cache_dir: Path) -> Path:
    """The file that says which copy is the newest of a URI."""
    return root_of(cache_dir) / _pointer(uri)


def _pointer(uri: str) -> Path:
    return Path("places") / f"{blake3(uri.encode()).hexdigest()}.json"


def find_fetched(uri: str, cache_dir: Path) -> Fetched | None:
    """The newest copy; None where there is none."""
    given = os.environ.get(PLACED_VARIABLE)
    root = Path(given) if given else root_of(cache_dir)
    try:
        with (root / _pointer(uri)).open("rb") as file:
            found = json.loads(file.read(POINTER_BYTES_MAX))
        path = root / str(found["path"])
        copy = Fetched(uri=uri, tag=str(found["tag"]), digest=str(found["digest"]), path=path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    inside = path.resolve().is_relative_to(root.resolve())
    return copy if inside and path.exists() else None

"""Whether a file of a plugin has changed, told without reading any."""

from __future__ import annotations

from pathlib import Path

from rollout.plugins.sidecar.manifest import LEFT_OUT

Stamp = frozenset[tuple[str, int, int]]


def stamp_of(folder: Path) -> Stamp:
    """What tells that a file below has changed: its bytes, or whether it may be run."""
    below = (
        path
        for path in folder.rglob("*")
        if not LEFT_OUT.intersection(path.relative_to(folder).parts)
    )
    return frozenset(seen for path in below for seen in look_at(path))


def look_at(path: Path) -> Stamp:
    """The same of one file; one that is not there, or goes while it is looked at, is gone."""
    try:
        told = path.lstat()
    except FileNotFoundError:
        return frozenset()
    return frozenset({(str(path), told.st_ctime_ns, told.st_size)})

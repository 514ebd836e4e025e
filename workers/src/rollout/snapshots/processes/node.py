"""What of a machine an image of processes relies on: it goes on where all of it is the same, and is refused elsewhere by name."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from blake3 import blake3

from rollout.errors import SnapshotRefused
from rollout.ledger.records import Record

IDENTITIES = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))
CPU = Path("/proc/cpuinfo")
SHOWN_MAX = 5


class MappedFile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file as it was when the image was made."""

    path: str
    size_bytes: int
    modified_ns: int


def read_node(criu_version: str) -> dict[str, str]:
    """This machine: which one, its kernel, its processor's features, its CRIU."""
    return {
        "machine": _machine(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "processor": blake3(" ".join(read_features()).encode()).hexdigest()[:32],
        "criu": criu_version,
    }


def read_features(path: Path = CPU) -> tuple[str, ...]:
    """What the processor can, sorted."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ()
    found = [line for line in lines if line.startswith(("flags", "Features"))]
    return tuple(sorted(found[0].partition(":")[2].split())) if found else ()


def require_same_node(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise SnapshotRefused that names what is another. An image of an older CRIU of the same first number is taken."""
    told = [
        f"{name} was {then.get(name, 'unknown')}, is {now[name]}"
        for name in now
        if name != "criu" and then.get(name) != now[name]
    ]
    if then.get("criu", "").partition(".")[0] != now.get("criu", "").partition(".")[0]:
        told.append(f"criu was {then.get('criu')}, is {now.get('criu')}")
    if told:
        raise SnapshotRefused(
            f"the image was made on another kind of machine: {'; '.join(told)}; an image of processes goes on where it"
            " was made, begin from a snapshot of the run's state instead"
        )


def look_at_files(paths: Iterable[str]) -> tuple[MappedFile, ...]:
    """The files as they are now; those that cannot be looked at are left out."""
    found = []
    for path in paths:
        try:
            stat = Path(path).stat()
        except OSError:
            continue
        found.append(MappedFile(path=path, size_bytes=stat.st_size, modified_ns=stat.st_mtime_ns))
    return tuple(found)


def require_same_files(then: Iterable[MappedFile]) -> None:
    """Raise SnapshotRefused that names files, such as another torch's, that were changed since the image was made."""
    before = {one.path: one for one in then}
    now = {one.path: one for one in look_at_files(before)}
    changed = [path for path, one in before.items() if now.get(path) != one]
    if changed:
        more = f" and {len(changed) - SHOWN_MAX} more" if len(changed) > SHOWN_MAX else ""
        raise SnapshotRefused(
            f"files that the image's processes have mapped were changed or removed since: {', '.join(changed[:SHOWN_MAX])}"
            f"{more}; install again what was there, or begin from a snapshot of the run's state"
        )


def _machine() -> str:
    for path in IDENTITIES:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text:
            return blake3(b"rollout machine " + text.encode()).hexdigest()[:32]
    return "unknown"

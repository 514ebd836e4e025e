"""What a tree of processes holds that no image can hold, or none may: looked for before anything is stopped.

Refused are rings of io_uring, devices, connections that leave this machine, what lives in further namespaces (sandboxes of
tools), and processes that hold more than their own state: the coordinator, plugins, and other people's code beside a run.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rollout.errors import SnapshotRefused

NAMESPACES = ("pid", "user", "mnt", "net")
FORBIDDEN = {
    "rollout.entrypoints.coordinator": "the coordinator's memory has its keys and the run's ledger: it is never imaged",
    "rollout.entrypoints.serving": "a gateway's memory has its clients' keys",
    "rollout.plugins": "it hosts a plugin or data code, which is not imaged",
    "rollout.tools": "it runs tools, which are not imaged",
    "bwrap": "it is a sandbox of tools",
}
"""By a word of the command line."""
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/infiniband")
IO_URING = "anon_inode:[io_uring]"
ESTABLISHED = "01"
SHOWN_MAX = 5


def tree_of(init: int, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Every process below process 1 of a cell, as this machine counts."""
    found: list[int] = []
    front = [init]
    while front:
        front = [child for pid in front for child in _children(proc / str(pid))]
        found += front
    return tuple(found)


def require_imageable(pids: Sequence[int], proc: Path = Path("/proc")) -> None:
    """Raise SnapshotRefused that names each process that stands against an image."""
    reasons = [
        f"process {pid} ({_name(proc / str(pid))}): {reason}"
        for pid in pids
        for reason in _reasons(proc / str(pid), pids[0], proc)
    ]
    if not pids:
        raise SnapshotRefused("the program has ended")
    if reasons:
        more = f"; and {len(reasons) - SHOWN_MAX} more" if len(reasons) > SHOWN_MAX else ""
        raise SnapshotRefused(
            f"no image is made, and the program goes on: {'; '.join(reasons[:SHOWN_MAX])}{more}"
        )


def mapped_files(pids: Iterable[int], proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Every file that the processes have mapped: what an image does not hold, and needs to find unchanged."""
    found: set[str] = set()
    for pid in pids:
        for line in _lines(proc / str(pid) / "maps"):
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/") and fields[4] != "0":
                found.add(fields[5])
    gone = " (deleted)"
    return tuple(sorted(one for one in found if not one.endswith(gone) and "/dev/shm/" not in one))  # noqa: S108


def _reasons(process: Path, root: int, proc: Path) -> Iterator[str]:
    words = _words(process)
    for word, reason in FORBIDDEN.items():
        if any(
            one == word or one.startswith(f"{word}.") or one.endswith(f"/{word}") for one in words
        ):
            yield reason
    for kind in NAMESPACES:
        if _link(process / "ns" / kind) != _link(proc / str(root) / "ns" / kind):
            yield f"it is in another {kind} namespace than the program, as a sandbox of tools is"
    links = [_link(one) for one in _entries(process / "fd")]
    if IO_URING in links:
        yield "it has a ring of io_uring, which lives in the kernel"
    for device in sorted({one for one in links if one.startswith(DEVICES)}):
        yield f"it has the device {device} open"
    yield from _far_connections(process, links)


def _far_connections(process: Path, links: Sequence[str]) -> Iterator[str]:
    inodes = {one[len("socket:[") : -1] for one in links if one.startswith("socket:[")}
    for table in ("tcp", "tcp6"):
        for line in _lines(process / "net" / table)[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != ESTABLISHED or fields[9] not in inodes:
                continue
            address = parse_address(fields[2])
            if not _is_loopback(address):
                yield f"it is connected to {address}, which is not of this machine: end that connection first"


def parse_address(field: str) -> str:
    """The address of ``0100007F:1F90`` in the kernel's tables: words in this machine's order."""
    text = field.partition(":")[0]
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, raw)


def _is_loopback(address: str) -> bool:
    return address.removeprefix("::ffff:").startswith("127.") or address == "::1"


def _children(process: Path) -> list[int]:
    found: list[int] = []
    for task in _entries(process / "task"):
        found += [int(one) for line in _lines(task / "children") for one in line.split()]
    return found


def _name(process: Path) -> str:
    return " ".join(_words(process)[:4])[:120] or "?"


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _lines(path: Path) -> list[str]:
    """Empty where a process ended meanwhile."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""

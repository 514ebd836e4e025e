"""The cgroups of a node: one folder per controller (v1), or one in all (v2, unproven), named after the node."""

import time
from pathlib import Path

from cluster.machine import CGROUPS

V1_CONTROLLERS = (
    *("cpu", "cpuacct", "cpuset", "memory", "pids"),
    *("devices", "freezer", "blkio", "systemd"),
)
UNIFIED = "unified"
"""runc adds a folder here by itself on a hybrid machine."""
REMOVE_SECONDS_MAX = 30.0


def create(name: str) -> None:
    """Make the node's folders; a kubelet wants its root to exist."""
    for parent in _hierarchies():
        (parent / name).mkdir(exist_ok=True)
        if parent.name == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):
                (parent / name / file).write_text((parent / file).read_text())


def remove(name: str) -> list[Path]:
    """Remove the node's folders, deepest first; returns those that would not go."""
    roots = [parent / name for parent in (*_hierarchies(), CGROUPS / UNIFIED)]
    return [root for root in roots if root.exists() and not _remove_tree(root)]


def _remove_tree(root: Path) -> bool:
    deadline = time.monotonic() + REMOVE_SECONDS_MAX
    while root.exists() and time.monotonic() < deadline:
        folders = [root, *(found for found in root.rglob("*") if found.is_dir())]
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            _try_remove(folder)
        if root.exists():
            time.sleep(0.1)
    return not root.exists()


def _try_remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # a dying task is still in it: the caller tries again


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    found = [CGROUPS / controller for controller in V1_CONTROLLERS]
    return [hierarchy for hierarchy in found if hierarchy.exists()]

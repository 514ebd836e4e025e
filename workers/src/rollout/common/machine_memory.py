"""How much memory this process may use, and may still take: the machine's, or its control group's where that is bounded lower."""

from __future__ import annotations

from pathlib import Path

GROUP = Path("/sys/fs/cgroup/memory.max")
RECLAIMED = "inactive_file "
"""Of a group's statistics: copies of files that it gives up before it refuses memory."""


def usable_memory() -> int:
    """Bytes, of everything that runs in the same group together."""
    import psutil  # what only reads manifests does without

    total = int(psutil.virtual_memory().total)
    try:
        bound = GROUP.read_text().strip()
    except OSError:
        return total
    return min(total, int(bound)) if bound.isdecimal() else total


def available_memory() -> int:
    """Bytes that may be taken now without taking them from anybody; copies of files do not count as taken."""
    import psutil  # as above

    free = int(psutil.virtual_memory().available)
    try:
        bound = GROUP.read_text().strip()
        used = int(GROUP.with_name("memory.current").read_text())
        lines = GROUP.with_name("memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return free
    if not bound.isdecimal():
        return free
    cached = sum(int(line.removeprefix(RECLAIMED)) for line in lines if line.startswith(RECLAIMED))
    return min(free, max(0, int(bound) - used + cached))

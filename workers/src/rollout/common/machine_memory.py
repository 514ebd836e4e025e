"""How much memory this process may use: the machine's, or its control group's where that is bounded lower."""

from __future__ import annotations

from pathlib import Path

GROUP = Path("/sys/fs/cgroup/memory.max")


def usable_memory() -> int:
    """Bytes, of everything that runs in the same group together."""
    import psutil  # what only reads manifests does without

    total = int(psutil.virtual_memory().total)
    try:
        bound = GROUP.read_text().strip()
    except OSError:
        return total
    return min(total, int(bound)) if bound.isdecimal() else total

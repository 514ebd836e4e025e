"""Into the memory of a process that patches weights there: as a bit that flips, past every seal."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rollout_vllm.sending.memory import NAME


def mirror_addresses(pid: int) -> tuple[int, int] | None:
    """Where the process has its weights mapped, from and to; None while it has none."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if f"/memfd:{NAME}" in line:
            start, _, end = line.split(maxsplit=1)[0].partition("-")
            return int(start, 16), int(end, 16)
    return None


def flip_in_memory(pid: int, place: int) -> None:
    """One bit of the byte at ``place`` of the weights is another; below 0: counted from their end."""
    found = mirror_addresses(pid)
    assert found is not None, f"process {pid} has no weights in memory"
    at = found[0] + (place if place >= 0 else mirror_size(pid) + place)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        byte = os.pread(memory, 1, at)[0]
        assert os.pwrite(memory, bytes([byte ^ 0x40]), at) == 1
    finally:
        os.close(memory)


def mirror_size(pid: int) -> int:
    """Bytes of the file that is mapped there."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(
            FileNotFoundError
        ):  # one that was closed meanwhile, such as the listing's own
            if f"/memfd:{NAME}" in str(link.readlink()):
                return link.stat().st_size
    raise AssertionError(f"process {pid} has no weights in memory")

"""A file in this machine's memory, which no folder names and nobody else changes. Standard library only.

Linux keeps such a file (memfd) as long as a process has it open or mapped, and frees it with the last one, however that
ended. Only this user opens it, by the number that it has in this process. Once it is sealed its length stays, so that no
reader meets an end that was not there, and no mapping or descriptor but the one of this process writes to it. Its memory
is taken when it is made, not when it is touched.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from pathlib import Path

NAME = "rollout-weights"
"""In lists of what a process has open or mapped; it opens nothing."""
SEAL_FUTURE_WRITE = 0x10
"""Linux's F_SEAL_FUTURE_WRITE, which Python does not name yet."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class SealedMemory:
    """A file of ``size`` bytes: fill ``mapped``, then ``seal`` it. Raises OSError, ValueError; nothing is left of it then."""

    def __init__(self, size: int) -> None:
        descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._close = weakref.finalize(self, os.close, descriptor)
        os.fchmod(descriptor, 0o600)
        os.posix_fallocate(descriptor, 0, size)
        self._descriptor = descriptor
        self.mapped = mmap.mmap(descriptor, size)
        """All of it, to be written to by this process."""
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        """As processes of this user open it, while this one lives and has it open."""

    def seal(self) -> None:
        """Nobody else writes to it from now on. Raises OSError where the kernel has no such seals."""
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, SEALS)

    def close(self) -> None:
        """Nobody opens it from now on; its memory goes with the last reader, and with this object. Idempotent."""
        self._close()

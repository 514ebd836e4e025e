"""One file of weights that is patched in place, wherever it lies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from rollout.weights.changes import Bits


class MirrorFile(Protocol):
    """A safetensors file that holds a copy of some version. Whoever has it open keeps it after ``close``."""

    @property
    def path(self) -> Path:
        """Where this process and the engine's open it."""
        ...

    def tensors(self) -> AbstractContextManager[dict[str, Bits]]:
        """Raw elements of every tensor, to be written to within the block. Raises StoreError."""
        ...

    def close(self) -> None:
        """It is not patched again. Idempotent."""
        ...

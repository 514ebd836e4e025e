"""Tensors of a safetensors file, each hashed in a second thread while the loader works on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors import safe_open

from rollout_vllm.digest import digest_tensor


class HashedFile:
    """One file, mapped. Use as a context; every tensor that is handed over is hashed, by name."""

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, framework="pt")
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout-digest")
        self._digests: dict[str, Future[bytes]] = {}

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.__exit__(kind, error, trace)

    @property
    def names(self) -> tuple[str, ...]:
        """Of every tensor in the file."""
        return tuple(self._file.keys())

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The named tensors, looking into the file's own pages."""
        for name in names:
            tensor = self._file.get_tensor(name)
            self._digests[name] = self._pool.submit(digest_tensor, name, tensor)
            yield name, tensor

    def digests(self) -> dict[str, bytes]:
        """Of what was handed over so far; waits for the last of them."""
        return {name: digest.result() for name, digest in self._digests.items()}

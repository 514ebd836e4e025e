"""Bytes of tensors that are alive, and the most there were: what a device would have to hold, counted on any machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorPeak(TorchDispatchMode):
    """Counts every storage once, from its first operation to its end. ``peak`` and ``live`` are bytes."""

    def __init__(self, there: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}
        for tensor in there:
            self._see(tensor)

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return found

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place in self._sizes:
            return
        self._sizes[place] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, place)

    def _forget(self, place: int) -> None:
        self.live -= self._sizes.pop(place)

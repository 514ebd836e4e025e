"""Host memory that tensors are copied into, again and again: what is read slowly elsewhere while the tensors change.

The memory is touched with the first copy and used for every later one of the same layout, so that a copy costs what
moving its bytes does. What would take more than a share of the free memory is refused, not tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch

from rollout.common.machine_memory import available_memory
from rollout.weights.host import pin_in_place

log = logging.getLogger(__name__)

Groups = Mapping[str, Mapping[str, torch.Tensor]]
Layout = tuple[tuple[str, str, torch.Size, torch.dtype], ...]

SHARE_MAX = 0.5
"""Of the memory that is free when the copy is first made: the rest is for what a step needs."""
_ALIGNMENT = 64


class Staging:
    """Owns one copy. Whoever reads it has ended before the next ``place``."""

    def __init__(self, free_bytes: Callable[[], int] = available_memory) -> None:
        self._free_bytes = free_bytes
        self._layout: Layout = ()
        self._held: dict[str, dict[str, torch.Tensor]] = {}

    def place(self, groups: Groups) -> dict[str, dict[str, torch.Tensor]] | None:
        """Tensors on the host for copies of these, their content undefined; None where memory for them is scarce.

        Of a sharded tensor it has the whole shape. What was placed before is gone where the layout is another.
        """
        layout = _layout_of(groups)
        if layout == self._layout:
            return self._held
        self._layout, self._held = (), {}
        size, free = sum(map(_space, _flat(groups))), self._free_bytes()
        if size > SHARE_MAX * free:
            log.warning("no memory for a copy bytes=%d free=%d share_max=%s", size, free, SHARE_MAX)
            return None
        on_device = any(tensor.is_cuda for tensor in _flat(groups))
        self._held = _lay_out(groups, _allocate(size, pinned=on_device))
        self._layout = layout
        return self._held


def _lay_out(groups: Groups, block: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
    found: dict[str, dict[str, torch.Tensor]] = {}
    start = 0
    for name, group in groups.items():
        found[name] = {}
        for key, tensor in group.items():
            raw = block[start : start + tensor.numel() * tensor.element_size()]
            found[name][key] = raw.view(tensor.dtype).view(tensor.shape)
            start += _space(tensor)
    return found


def _allocate(size: int, *, pinned: bool) -> torch.Tensor:
    """``pinned`` where a device copies into it."""
    block = torch.empty(size, dtype=torch.uint8)
    if pinned:
        pin_in_place(block)
    return block


def _flat(groups: Groups) -> list[torch.Tensor]:
    return [tensor for group in groups.values() for tensor in group.values()]


def _space(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT


def _layout_of(groups: Groups) -> Layout:
    return tuple(
        (name, key, tensor.shape, tensor.dtype)
        for name, group in groups.items()
        for key, tensor in group.items()
    )

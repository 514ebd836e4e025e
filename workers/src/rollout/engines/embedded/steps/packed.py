"""Products of a weight with few columns, from a copy of it that is packed for the kernel once.

MKL copies a matrix into the order in which its kernel reads it, in every product: with few columns that takes as long
as all the arithmetic. A packed weight serves products of one number of columns, float32 on a CPU. Whether its
products are the plain ones bit for bit is measured, for each shape, with the build and threads at hand.

Axes: O rows and K columns of a weight, N columns of a product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

COLUMNS_MAX = 12
"""With more columns the copy does not matter."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [O, K], packed for products with ``columns`` columns."""

    weight: torch.Tensor
    columns: int
    packed: torch.Tensor

    def times(self, x_KN: torch.Tensor) -> torch.Tensor:
        """``weight @ x_KN``, [O, N], each column in one piece of memory."""
        rows_NK = x_KN.t().contiguous()
        return _mkl()._mkl_linear(rows_NK, self.packed, self.weight, None, self.columns).t()  # noqa: SLF001 - torch has no public name for it


def can_pack(weight: torch.Tensor, columns: int) -> bool:
    """Whether there is anything to gain, and the kernel."""
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32
    return fits and 1 < columns <= COLUMNS_MAX and hasattr(_mkl(), "_mkl_linear")


def pack_weight(weight: torch.Tensor, columns: int) -> PackedWeight:
    """For products with so many columns; takes the memory of ``weight`` once more."""
    packed = _mkl()._mkl_reorder_linear_weight(weight, columns)  # noqa: SLF001 - as above
    return PackedWeight(weight, columns, packed)


def agrees(weight: torch.Tensor, columns: int) -> bool:
    """Whether a packed product of this shape is the plain one bit for bit, on this build and so many threads."""
    return _agrees(tuple(weight.shape), columns, torch.get_num_threads())


@lru_cache(maxsize=1024)
def _agrees(shape: tuple[int, ...], columns: int, threads: int) -> bool:
    del threads
    noise = torch.Generator().manual_seed(0)
    weight, x_KN = (torch.randn(size, generator=noise) for size in (shape, (shape[1], columns)))
    return torch.equal(pack_weight(weight, columns).times(x_KN), torch.mm(weight, x_KN))


def _mkl() -> Any:
    return torch.ops.mkl

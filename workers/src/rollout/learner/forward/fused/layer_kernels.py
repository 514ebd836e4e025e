"""Triton: root-mean-square norms and gated activations, forward and backward, each in one pass over half-precision numbers.

Everything is computed in float32 and rounded where transformers rounds: before a norm's weight, and after the
activation. Imported only where tensors lie on a CUDA device.
"""

from __future__ import annotations

import triton  # pyrefly: ignore[missing-import] - comes with torch for CUDA only
import triton.language as tl  # pyrefly: ignore[missing-import] - likewise


@triton.jit(do_not_specialize=["num_rows"])
def norm_rows(x, weight, out, scales, num_rows, size, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """``out`` = x / sqrt(mean(x^2) + eps) * weight, ROWS rows a program; ``scales`` [rows] is what x was multiplied by."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < num_rows)[:, None] & (columns < size)[None, :]
    places = rows.to(tl.int64)[:, None] * size + columns[None, :]
    value = tl.load(x + places, inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1) / size + eps)
    factor = tl.load(weight + columns, columns < size, other=0.0).to(tl.float32)
    rounded = (value * scale[:, None]).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + places, (rounded * factor[None, :]).to(out.dtype.element_ty), inside)
    tl.store(scales + rows, scale, rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def norm_gradients(
    grad,
    x,
    weight,
    scales,
    grad_x,
    sums,
    num_rows,
    size,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of x, and ``sums`` [programs, size] of the weight's, which the caller adds up."""
    columns = tl.arange(0, BLOCK)
    factor = tl.load(weight + columns, columns < size, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < num_rows)[:, None] & (columns < size)[None, :]
        places = rows.to(tl.int64)[:, None] * size + columns[None, :]
        scale = tl.load(scales + rows, rows < num_rows, other=0.0)[:, None]
        given = tl.load(grad + places, inside, other=0.0).to(tl.float32)
        unit = tl.load(x + places, inside, other=0.0).to(tl.float32) * scale
        total += tl.sum(given * unit.to(x.dtype.element_ty).to(tl.float32), 0)
        inner = given * factor[None, :]
        shared = tl.sum(inner * unit, 1) / size
        found = (inner - unit * shared[:, None]) * scale
        tl.store(grad_x + places, found.to(grad_x.dtype.element_ty), inside)
    tl.store(sums + tl.program_id(0) * size + columns, total, columns < size)


@triton.jit
def gate_values(gate, up, out, count, BLOCK: tl.constexpr):
    """``out`` = silu(gate) * up."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    g = tl.load(gate + places, inside, other=0.0).to(tl.float32)
    u = tl.load(up + places, inside, other=0.0).to(tl.float32)
    active = (g / (1.0 + tl.exp(-g))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + places, (active * u).to(out.dtype.element_ty), inside)


@triton.jit
def gate_gradients(grad, gate, up, grad_gate, grad_up, count, BLOCK: tl.constexpr):
    """Of both, from that of ``silu(gate) * up``."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    given = tl.load(grad + places, inside, other=0.0).to(tl.float32)
    g = tl.load(gate + places, inside, other=0.0).to(tl.float32)
    u = tl.load(up + places, inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-g))
    active = (g * share).to(gate.dtype.element_ty).to(tl.float32)
    outer = (given * u).to(gate.dtype.element_ty).to(tl.float32)
    slope = share * (1.0 + g * (1.0 - share))
    tl.store(grad_gate + places, (outer * slope).to(gate.dtype.element_ty), inside)
    tl.store(grad_up + places, (given * active).to(gate.dtype.element_ty), inside)

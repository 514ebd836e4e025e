"""What stands in for the Triton kernels of BLAKE3 where there is no Triton: the same three, in numpy, on CPU tensors."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

IV = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def rotated(x, bits):
    return (x >> np.uint32(bits)) | (x << np.uint32(32 - bits))


def compressed(values, words, counter, length, flags):
    """[8, n] chaining values from [8, n] and [16, n]; the rest [n]."""
    low, high = counter.astype(np.uint32), (counter >> 32).astype(np.uint32)
    fixed = [np.full_like(low, one) for one in IV[:4]]
    v = [*values, *fixed, low, high, length.astype(np.uint32), flags.astype(np.uint32)]
    m = list(words)
    for _ in range(7):
        for index, (a, b, c, d) in enumerate((*COLUMNS, *DIAGONALS)):
            for word, first, second in ((m[2 * index], 16, 12), (m[2 * index + 1], 8, 7)):
                v[a] = v[a] + v[b] + word
                v[d] = rotated(v[d] ^ v[a], first)
                v[c] = v[c] + v[d]
                v[b] = rotated(v[b] ^ v[c], second)
        m = [m[place] for place in ORDER]
    return np.stack([v[k] ^ v[k + 8] for k in range(8)])


class Kernel:
    """Called as Triton's are, for all programs at once."""

    def __init__(self, work):
        self._work = work

    def __getitem__(self, grid):
        def call(*args, BLOCK):
            assert BLOCK & (BLOCK - 1) == 0
            self._work(grid[0], BLOCK, *args)

        return call


def _pack(programs, block, table, buffer, offset):
    rows = table.numpy()[:programs]
    for source, target, size in rows.tolist():
        place = target - offset
        assert 0 <= place <= place + size <= buffer.nbytes
        ctypes.memmove(buffer.data_ptr() + place, source, size)


def _chunks(programs, block, buffer, out, base, size, count):
    assert (programs - 1) * block < count <= programs * block
    slot = np.arange(count)
    chunk = base.numpy()[slot // 64] + slot % 64
    total = size.numpy()[slot // 64]
    held = np.minimum(total - chunk * 1024, 1024)
    blocks = np.where((held > 0) | (chunk == 0), np.maximum(-(-held // 64), 1), 0)
    words = buffer.numpy()[: count * 1024].view(np.uint32).reshape(count, 16, 16)
    values = np.repeat(np.array(IV, np.uint32)[:, None], count, axis=1)
    for block_index in range(16):
        ends = block_index == blocks - 1
        flags = 2 * ends + 1 * (block_index == 0) + np.where(ends & (total <= 1024), 8, 0)
        length = np.where(ends, held - 64 * block_index, 64)
        new = compressed(values, words[:, block_index].T, chunk, length, flags)
        values = np.where(block_index < blocks, new, values)
    out.numpy()[:] = values.T.view(np.int32)


def _parents(programs, block, nodes, out, base, total, level, count):
    assert (programs - 1) * block < count <= programs * block
    width = 32 >> level
    place = np.arange(count)
    whole, start = total.numpy()[place // width], base.numpy()[place // width]
    held = -(-np.minimum(whole - start, 64) // (1 << level))
    pair = 2 * (place % width) + 1 < held
    flags = 4 + np.where((whole <= 64) & (held == 2), 8, 0)
    given = nodes.numpy().view(np.uint32).reshape(count, 16).T
    values = np.repeat(np.array(IV, np.uint32)[:, None], count, axis=1)
    new = compressed(values, given, np.zeros(count, np.int64), np.full(count, 64), flags)
    out.numpy()[:] = np.where(pair, new, given[:8]).T.astype(np.uint32).view(np.int32)


class NumpyKernels:
    pack_tiles = Kernel(_pack)
    chunk_values = Kernel(_chunks)
    parent_values = Kernel(_parents)


def content(message):
    return b"".join(
        part
        if isinstance(part, bytes)
        else part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for part in message
    )

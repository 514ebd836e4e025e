"""BLAKE3 in Triton: bytes laid into chunks, chaining values of chunks, and of parents one level at a time.

The algorithm is section 2 of the BLAKE3 paper (https://github.com/BLAKE3-team/BLAKE3-specs), unkeyed. Imported only
where tensors lie on a CUDA device: torch for CPUs comes without Triton.

A slot is a place for one chunk of 1,024 bytes; 64 slots are a group, and a group holds chunks of one message.
"""

from __future__ import annotations

import triton  # pyrefly: ignore[missing-import] - comes with torch for CUDA only
import triton.language as tl  # pyrefly: ignore[missing-import] - likewise

CHUNK_START: tl.constexpr = tl.constexpr(1)
CHUNK_END: tl.constexpr = tl.constexpr(2)
PARENT: tl.constexpr = tl.constexpr(4)
ROOT: tl.constexpr = tl.constexpr(8)
IV: tl.constexpr = tl.constexpr(
    (
        0x6A09E667,
        0xBB67AE85,
        0x3C6EF372,
        0xA54FF53A,
        0x510E527F,
        0x9B05688C,
        0x1F83D9AB,
        0x5BE0CD19,
    )
)
"""Of SHA-256, which the chaining value of every tree starts from."""


@triton.jit
def pack_tiles(table, buffer, offset, BLOCK: tl.constexpr):
    """Copy one tile a program: row (source address, target byte, size) of ``table``; ``offset`` is the buffer's first byte.

    Words of four bytes, whatever the alignment of the source; what is no whole word of the target, byte by byte.
    """
    row = table + 3 * tl.program_id(0)
    source = tl.load(row)
    start = tl.load(row + 1) - offset
    stop = start + tl.load(row + 2)
    first, last = (start + 3) // 4, stop // 4
    shift = (source - start) & 3
    low_bits = (shift * 8).to(tl.uint32)
    words = buffer.to(tl.pointer_type(tl.uint32))
    for at in range(first, last, BLOCK):
        word = at + tl.arange(0, BLOCK)
        inside = word < last
        address = (source - start - shift + 4 * word).to(tl.pointer_type(tl.uint32))
        low = tl.load(address, inside, other=0)
        high = tl.load(address + 1, inside & (shift != 0), other=0)
        joined = (low >> low_bits) | (high << ((32 - low_bits) & 31))
        tl.store(words + word, tl.where(shift == 0, low, joined), inside)
    few = tl.arange(0, 4)
    octets = buffer.to(tl.pointer_type(tl.uint8))
    head = start + few
    inside = head < tl.minimum(4 * first, stop)
    value = tl.load((source + few).to(tl.pointer_type(tl.uint8)), inside, other=0)
    tl.store(octets + head, value, inside)
    tail = 4 * last + few
    inside = (tail < stop) & (tail >= 4 * first)
    value = tl.load((source + tail - start).to(tl.pointer_type(tl.uint8)), inside, other=0)
    tl.store(octets + tail, value, inside)


@triton.jit(do_not_specialize=["count"])
def chunk_values(buffer, out, base, size, count, BLOCK: tl.constexpr):
    """Chaining values [count, 8] of chunks; of each group ``base`` is its first chunk, ``size`` its message's bytes."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < count
    chunk = tl.load(base + slot // 64, inside, other=0) + slot % 64
    total = tl.load(size + slot // 64, inside, other=0)
    held = tl.minimum(total - chunk * 1024, 1024)
    active = inside & ((held > 0) | (chunk == 0))
    blocks = tl.maximum((held + 63) // 64, 1)
    root = tl.where(total <= 1024, ROOT, 0)
    low, high = chunk.to(tl.uint32), (chunk >> 32).to(tl.uint32)
    none = tl.zeros([BLOCK], tl.uint32)
    h0, h1, h2, h3 = none + IV[0], none + IV[1], none + IV[2], none + IV[3]
    h4, h5, h6, h7 = none + IV[4], none + IV[5], none + IV[6], none + IV[7]
    for block in range(16):
        there = active & (block < blocks)
        words = buffer.to(tl.pointer_type(tl.int64)) + slot * 128 + block * 8
        m0, m1 = _two_words(words, there)
        m2, m3 = _two_words(words + 1, there)
        m4, m5 = _two_words(words + 2, there)
        m6, m7 = _two_words(words + 3, there)
        m8, m9 = _two_words(words + 4, there)
        m10, m11 = _two_words(words + 5, there)
        m12, m13 = _two_words(words + 6, there)
        m14, m15 = _two_words(words + 7, there)
        ends = block == blocks - 1
        flags = tl.where(ends, CHUNK_END + root, 0) + tl.where(block == 0, CHUNK_START, 0)
        length = tl.where(ends, held - block * 64, 64).to(tl.uint32)
        n0, n1, n2, n3, n4, n5, n6, n7 = _compress(
            (h0, h1, h2, h3, h4, h5, h6, h7),
            (m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15),
            low,
            high,
            length,
            flags.to(tl.uint32),
        )
        h0, h1 = tl.where(there, n0, h0), tl.where(there, n1, h1)
        h2, h3 = tl.where(there, n2, h2), tl.where(there, n3, h3)
        h4, h5 = tl.where(there, n4, h4), tl.where(there, n5, h5)
        h6, h7 = tl.where(there, n6, h6), tl.where(there, n7, h7)
    _store_value(out + slot * 8, (h0, h1, h2, h3, h4, h5, h6, h7), active)


@triton.jit(do_not_specialize=["level", "count"])
def parent_values(nodes, out, base, total, level, count, BLOCK: tl.constexpr):
    """The next level: [count, 8] of twice as many ``nodes``, 64 >> level of them a group.

    Of each group ``base`` is its first node when the group was whole, ``total`` its message's nodes then. A node
    without a neighbour goes up as it is; the one that stands over a whole message is its root.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    group = place // (32 >> level)
    whole = tl.load(total + group, inside, other=0)
    start = tl.load(base + group, inside, other=0)
    held = (tl.minimum(whole - start, 64) + (1 << level) - 1) >> level
    left = 2 * (place % (32 >> level))
    here, pair = inside & (left < held), inside & (left + 1 < held)
    l0, l1, l2, l3, l4, l5, l6, l7 = _load_value(nodes + place * 16, here)
    r0, r1, r2, r3, r4, r5, r6, r7 = _load_value(nodes + place * 16 + 8, pair)
    none = tl.zeros([BLOCK], tl.uint32)
    flags = PARENT + tl.where((whole <= 64) & (held == 2), ROOT, 0)
    n0, n1, n2, n3, n4, n5, n6, n7 = _compress(
        (
            none + IV[0],
            none + IV[1],
            none + IV[2],
            none + IV[3],
            none + IV[4],
            none + IV[5],
            none + IV[6],
            none + IV[7],
        ),
        (l0, l1, l2, l3, l4, l5, l6, l7, r0, r1, r2, r3, r4, r5, r6, r7),
        none,
        none,
        none + 64,
        flags.to(tl.uint32),
    )
    n0, n1 = tl.where(pair, n0, l0), tl.where(pair, n1, l1)
    n2, n3 = tl.where(pair, n2, l2), tl.where(pair, n3, l3)
    n4, n5 = tl.where(pair, n4, l4), tl.where(pair, n5, l5)
    n6, n7 = tl.where(pair, n6, l6), tl.where(pair, n7, l7)
    _store_value(out + place * 8, (n0, n1, n2, n3, n4, n5, n6, n7), here)


@triton.jit
def _compress(h, m, low, high, length, flags):
    """The first half of the compression function's output: a chaining value."""
    none = tl.zeros_like(low)
    fixed = (none + IV[0], none + IV[1], none + IV[2], none + IV[3])
    v = h + fixed + (low, high, length, flags)
    for _ in tl.static_range(6):
        v = _round(v, m)
        m = _permute(m)
    v = _round(v, m)
    return (
        v[0] ^ v[8],
        v[1] ^ v[9],
        v[2] ^ v[10],
        v[3] ^ v[11],
        v[4] ^ v[12],
        v[5] ^ v[13],
        v[6] ^ v[14],
        v[7] ^ v[15],
    )


@triton.jit
def _round(v, m):
    v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15 = v
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m[0], m[1])
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m[2], m[3])
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m[4], m[5])
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m[6], m[7])
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m[8], m[9])
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m[10], m[11])
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m[12], m[13])
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m[14], m[15])
    return v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15


@triton.jit
def _permute(m):
    """The order of a message's words in the next round."""
    return (
        m[2],
        m[6],
        m[3],
        m[10],
        m[7],
        m[0],
        m[4],
        m[13],
        m[1],
        m[11],
        m[12],
        m[5],
        m[9],
        m[14],
        m[15],
        m[8],
    )


@triton.jit
def _mix(a, b, c, d, x, y):
    a = a + b + x
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b + y
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _rotate(x, bits: tl.constexpr):
    return (x >> bits) | (x << (32 - bits))


@triton.jit
def _two_words(words, there):
    both = tl.load(words, there, other=0)
    return both.to(tl.uint32), (both >> 32).to(tl.uint32)


@triton.jit
def _load_value(nodes, there):
    pairs = nodes.to(tl.pointer_type(tl.int64))
    v0, v1 = _two_words(pairs, there)
    v2, v3 = _two_words(pairs + 1, there)
    v4, v5 = _two_words(pairs + 2, there)
    v6, v7 = _two_words(pairs + 3, there)
    return v0, v1, v2, v3, v4, v5, v6, v7


@triton.jit
def _store_value(out, v, there):
    words = out.to(tl.pointer_type(tl.uint32))
    for k in tl.static_range(8):
        tl.store(words + k, v[k], there)

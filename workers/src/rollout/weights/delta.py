"""A weight version as what changed since another: lossless, and never larger than the tensors themselves.

A delta object is a magic word, a compressed header and frames. For every tensor with few changed elements
it holds positions and new raw values, all tensors of one element size together, split into planes of equal
significance and compressed plane by plane; a tensor with many is held whole. Values overwrite: applying a
delta twice is applying it once, and nothing is ever added up.

Sizes, bf16, 1 % of elements at random places and with random values: 8.6 bits a position (the entropy is
8.1), 11 a value: 82 times smaller than the tensors. Sparsity is a property of learning rate over weight,
not of RL: a version that changed much is dense (``rollout.weights.publisher``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from rollout.common.bounded import unpack_zstd
from rollout.errors import StoreError
from rollout.weights.changes import UNSIGNED, Bits, Changes, find_changes, positions_of

MAGIC = b"RLDELTA1"
_LENGTH = struct.Struct("<I")

DENSITY_MAX = 0.3
"""A tensor with a larger share of changed elements is held whole. At 0.3 it would be a third of its size, and
finding and encoding the changes takes as long as sending it whole at 1 GB/s."""
LEVEL = 1
"""zstd level: 3 is slower and no smaller on such planes."""
THREADS_MAX = 2
GAP_BYTES = 4
HEADER_BYTES_MAX = 64 << 20

Tensors = Mapping[str, Bits]
"""Raw elements of every tensor, flat, by name."""


class TensorChange(msgspec.Struct, frozen=True, array_like=True):
    """One changed tensor. ``num_changes`` -1: it is held whole."""

    name: str
    size: int
    item_bytes: int
    num_changes: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a delta says of itself.

    ``bases`` name the objects that it builds on: the delta before it first, the dense base last. ``frames``
    are sizes in bytes.
    """

    bases: tuple[str, ...]
    tensors: tuple[TensorChange, ...]
    frames: tuple[int, ...]


class DeltaBroken(StoreError):  # noqa: N818 - a state
    """A delta is damaged, or was applied to what it does not belong to."""


def encode_delta(
    old: Tensors, new: Tensors, bases: tuple[str, ...], *, threads: int = THREADS_MAX
) -> list[bytes | memoryview]:
    """The object's bytes in parts; ``bases`` as in ``Header``. Raises ValueError when the two sides are not of one layout.

    Parts may look into ``new``: do not change it before they are written.
    """
    if layout_of(old) != layout_of(new):
        raise ValueError("a delta needs two versions with the same tensors")
    names = sorted(new)
    with ThreadPoolExecutor(max_workers=min(threads, THREADS_MAX)) as pool:
        found = dict(
            zip(names, pool.map(lambda name: _find(old[name], new[name]), names), strict=True)
        )
        planes = [plane.data for size in sorted(UNSIGNED) for plane in _split(found, new, size)]
        frames: list[bytes | memoryview] = list(pool.map(_compress, planes))
    frames += [new[name].view(np.uint8).data for name in names if found[name] is None]
    header = Header(
        bases=bases,
        tensors=tuple(
            _describe(name, new[name], found[name]) for name in names if _is_changed(found[name])
        ),
        frames=tuple(len(frame) for frame in frames),
    )
    text = _compress(msgspec.msgpack.encode(header))
    return [MAGIC, _LENGTH.pack(len(text)), text, *frames]


def layout_of(tensors: Tensors) -> dict[str, tuple[int, int]]:
    """Number and size of the elements of every tensor, by name."""
    return {name: (bits.size, bits.itemsize) for name, bits in sorted(tensors.items())}


def is_delta(data: memoryview | bytes) -> bool:
    """Whether an object's first bytes are those of a delta."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def read_header(data: memoryview) -> tuple[Header, int]:
    """A delta's header, and where its frames start. Raises DeltaBroken."""
    start = len(MAGIC) + _LENGTH.size
    if not is_delta(data) or len(data) < start:
        raise DeltaBroken("a weight delta does not begin as one")
    (length,) = _LENGTH.unpack(data[len(MAGIC) : start])
    try:
        text = _decompress(data[start : start + length], HEADER_BYTES_MAX)
        return msgspec.msgpack.decode(text, type=Header), start + length
    except (zstandard.ZstdError, msgspec.MsgspecError, ValueError) as error:
        raise DeltaBroken(f"the header of a weight delta cannot be read: {error}") from error


def apply_delta(tensors: Tensors, data: memoryview) -> Header:
    """Overwrite what changed in ``tensors``, which must be writable. Raises DeltaBroken.

    Everything is decoded and checked before the first element is written. Whether the result is the version
    that was meant is for the caller to verify, over all tensors.
    """
    header, start = read_header(data)
    _check_layout(header, tensors)
    ends = [start, *(start + end for end in accumulate(header.frames))]
    if ends[-1] != len(data):
        raise DeltaBroken(f"a weight delta of {ends[-1]} bytes has {len(data)}")
    frames = [data[a:b] for a, b in pairwise(ends)]
    try:
        writes = list(_decode(header, frames))
    except (zstandard.ZstdError, ValueError, IndexError) as error:
        raise DeltaBroken(f"the frames of a weight delta cannot be read: {error}") from error
    for change, positions, values in writes:
        target = tensors[change.name]
        if positions is None:
            target[:] = values
        else:
            target[positions] = values
    return header


def _find(old_N: Bits, new_N: Bits) -> Changes | None:
    return find_changes(old_N, new_N, density_max=DENSITY_MAX)


def _is_changed(found: Changes | None) -> bool:
    return found is None or found.gaps_K.size > 0


def _describe(name: str, bits: Bits, found: Changes | None) -> TensorChange:
    num = -1 if found is None else found.gaps_K.size
    return TensorChange(name=name, size=bits.size, item_bytes=bits.itemsize, num_changes=num)


def _split(
    found: Mapping[str, Changes | None], new: Tensors, item_bytes: int
) -> Iterator[NDArray[np.uint8]]:
    """Planes of all sparse tensors of one element size: of gaps, then of values. None where there are none."""
    changes = [
        one
        for name in sorted(found)
        if new[name].itemsize == item_bytes and (one := found[name]) is not None and one.gaps_K.size
    ]
    if not changes:
        return
    for column in (
        np.concatenate([one.gaps_K for one in changes]),
        np.concatenate([one.values_K for one in changes]),
    ):
        bytes_KB = column.view(np.uint8).reshape(column.size, column.itemsize)
        yield from np.ascontiguousarray(bytes_KB.T)


def _decode(
    header: Header, frames: Sequence[memoryview]
) -> Iterator[tuple[TensorChange, NDArray[np.int64] | None, Bits]]:
    """What to write into which tensor; positions None for the whole of it."""
    left = iter(frames)
    for item_bytes in sorted(UNSIGNED):
        mine = [
            one for one in header.tensors if one.item_bytes == item_bytes and one.num_changes >= 0
        ]
        if mine:
            total = sum(one.num_changes for one in mine)
            gaps = _join(left, total, GAP_BYTES)
            values = _join(left, total, item_bytes)
            yield from _cut(mine, gaps, values)
    for one in header.tensors:
        if one.num_changes < 0:
            yield one, None, np.frombuffer(_next(left), UNSIGNED[one.item_bytes], one.size)


def _cut(
    changes: Sequence[TensorChange], gaps: Bits, values: Bits
) -> Iterator[tuple[TensorChange, NDArray[np.int64], Bits]]:
    start = 0
    for one in changes:
        stop = start + one.num_changes
        positions = positions_of(gaps[start:stop].view(np.uint32))
        if positions.size and positions[-1] >= one.size:
            raise ValueError(f"{one.name}: element {positions[-1]} of {one.size}")
        yield one, positions, values[start:stop]
        start = stop


def _join(frames: Iterator[memoryview], size: int, item_bytes: int) -> Bits:
    """One column of ``size`` elements from its planes."""
    bytes_KB = np.empty((size, item_bytes), np.uint8)
    for index in range(item_bytes):
        plane = np.frombuffer(_decompress(_next(frames), size), np.uint8)
        if plane.size != size:
            raise ValueError(f"a plane of {plane.size} elements, expected {size}")
        bytes_KB[:, index] = plane
    return bytes_KB.reshape(-1).view(UNSIGNED[item_bytes])


def _next(frames: Iterator[memoryview]) -> memoryview:
    found = next(frames, None)
    if found is None:
        raise ValueError("there are fewer frames than tensors need")
    return found


def _check_layout(header: Header, tensors: Tensors) -> None:
    for one in header.tensors:
        bits = tensors.get(one.name)
        if bits is None or (bits.size, bits.itemsize) != (one.size, one.item_bytes):
            raise DeltaBroken(f"a weight delta names tensor {one.name}, which the base has not so")


def _compress(data: bytes | memoryview) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(data)


def _decompress(frame: memoryview, size_max: int) -> bytes:
    found = zstandard.frame_content_size(frame)
    if found < 0 or found > size_max:
        raise ValueError(f"a frame of {found} bytes, expected at most {size_max}")
    return unpack_zstd(frame, size_max)

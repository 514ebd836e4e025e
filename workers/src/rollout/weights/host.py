"""Between a GPU and the host, through pinned memory, which torch keeps for the next time.

Pinning is what costs: seconds for 4 GB, and no copy. torch gives pinned memory again once the tensors in it are gone,
so what only passes through the host goes piece by piece (``host_pieces``), and what stays there lies in one block.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from rollout.objects.bulk import PIECE_BYTES
from rollout.weights.raw import parse_header
from rollout_vllm.sending.heads import NAMES

log = logging.getLogger(__name__)

Told = Callable[[memoryview], object]
"""Hears of bytes as they are read."""

_DTYPES = {name: dtype for dtype, name in NAMES.items()} | {
    "BOOL": torch.bool,
    "I8": torch.int8,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
STAGING_BYTES = 64 << 20
"""Pinned memory that tensors pass through piece by piece."""
PINNED_BYTES_MIN = 1 << 20
"""Least block that is pinned in place."""


def pin_in_place(block: torch.Tensor) -> None:
    """Have a device copy from and to this host memory at full speed, as long as it is there; logged where it cannot.

    In place, for torch's own pinned memory is rounded up to a power of two. Less than ``PINNED_BYTES_MIN`` is left as it
    is: it shares its pages with others.
    """
    if block.nbytes < PINNED_BYTES_MIN:
        return
    runtime: Any = torch.cuda.cudart()
    told = runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0)
    if int(told):
        log.warning("memory is not pinned bytes=%d cuda_error=%d", block.nbytes, int(told))


def host_tensors(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The same on the CPU: copied once, all at a time, whoever reads them afterwards.

    Those of devices come to lie in one pinned block of their size, which the next call has again when they are gone.
    """
    away = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_cuda}
    if not away:
        return tensors
    spaces = {name: -(-one.nbytes // _ALIGNMENT) * _ALIGNMENT for name, one in away.items()}
    block = torch.empty(sum(spaces.values()), dtype=torch.uint8, pin_memory=True)
    places = dict(zip(away, block.split(list(spaces.values())), strict=True))
    found = dict(tensors)
    for name, one in away.items():
        target = places[name][: one.nbytes].view(one.dtype).view(one.shape)
        found[name] = target.copy_(one, non_blocking=True)
    for device in {one.device for one in away.values()}:
        torch.cuda.synchronize(device)
    return found


def host_pieces(tensors: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of tensors, one after the other; each piece until the next one is asked for.

    Tensors on the CPU are a piece each and are not copied; others pass through ``STAGING_BYTES`` of pinned memory.
    """
    staging: torch.Tensor | None = None
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if not flat.is_cuda:
            yield flat.numpy().data
            continue
        if staging is None:
            staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
        for piece in flat.split(STAGING_BYTES):
            yield staging[: len(piece)].copy_(piece).numpy().data


def read_tensors(path: Path, *, pinned: bool) -> dict[str, torch.Tensor]:
    """A safetensors file in memory of its own, one piece of it; ``pinned``: from which a GPU copies at full speed.

    Raises OSError, and ValueError on what is no whole safetensors file.
    """
    size = path.stat().st_size
    held = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    with path.open("rb") as file:
        read = file.readinto(held.numpy().data)
    try:
        header, body = parse_header(held.numpy())
        start = size - len(body)
        return {name: _part(held[start:], said) for name, said in header.items()}
    except (KeyError, TypeError, ValueError, RuntimeError, struct.error) as error:
        raise ValueError(f"{path}: {read} bytes, not a whole safetensors file ({error})") from error


def read_named(path: Path) -> tuple[dict[str, torch.Tensor], str]:
    """As ``read_apart``, and the name that a store gives these bytes: they are hashed while the next ones are read.

    By one thread, which is quicker than a disk: several cost more cores for as many bytes.
    """
    hasher = blake3()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="hash") as pool:
        tensors = dict(read_apart(path, partial(pool.submit, hasher.update)))
    return tensors, f"blake3:{hasher.hexdigest()}"


def read_apart(path: Path, told: Told = lambda _: None) -> Iterator[tuple[str, torch.Tensor]]:
    """A safetensors file, each tensor read into memory of its own: what passes through other memory is copied twice.

    ``told`` gets all bytes that were read, in the file's order. Raises OSError, and ValueError on what is no whole
    safetensors file.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            header, start = _read_header(file, size, told)
            for name in sorted(header, key=lambda name: header[name]["data_offsets"]):
                yield name, _read_part(file, start, size - start, header[name], told)
        except (KeyError, TypeError, ValueError, RuntimeError, struct.error) as error:
            raise ValueError(
                f"{path}: {size} bytes, not a whole safetensors file ({error})"
            ) from error


def _read_header(file: FileIO, size: int, told: Told) -> tuple[dict[str, Any], int]:
    """What a file says of its tensors, and where the first one begins."""
    head = file.read(_LENGTH.size)
    (length,) = _LENGTH.unpack(head)
    if length > size - len(head):
        raise ValueError(f"a header of {length} bytes in {size}")
    head += file.read(length)
    told(memoryview(head))
    header, _ = parse_header(np.frombuffer(head, np.uint8))
    return header, len(head)


def _read_part(
    file: FileIO, start: int, size: int, said: Mapping[str, Any], told: Told
) -> torch.Tensor:
    """One tensor of the ``size`` bytes from ``start`` on."""
    begin, end = said["data_offsets"]
    tensor = torch.empty(said["shape"], dtype=_DTYPES[said["dtype"]])
    if not 0 <= begin <= end <= size or tensor.nbytes != end - begin:
        raise ValueError(f"{tensor.nbytes} bytes at offsets {begin} to {end} of {size}")
    left = tensor.reshape(-1).view(torch.uint8).numpy().data
    file.seek(start + begin)
    while left:
        read = file.readinto(left[:PIECE_BYTES])
        if not read:
            raise ValueError(f"it ends {len(left)} bytes before the tensor does")
        told(left[:read])
        left = left[read:]
    return tensor


def _part(body: torch.Tensor, said: Mapping[str, Any]) -> torch.Tensor:
    start, stop = said["data_offsets"]
    if not 0 <= start <= stop <= len(body):
        raise ValueError(f"offsets {start} to {stop} of {len(body)}")
    return body[start:stop].view(_DTYPES[said["dtype"]]).view(said["shape"])

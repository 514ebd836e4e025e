"""Values that the learner's ranks tell each other: msgpack of a declared type, its length first.

Whoever reaches a rank's port may answer in another rank's place, so nothing that arrives is believed before
its length is within the bound and its content is of the type that the receiver asked for. Never a pickle:
that would be code. Tensors travel as type, shape and bytes, and arrive on the CPU.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec
import torch

from rollout.common.bounded import UNREADABLE
from rollout.errors import RunFailed

T = TypeVar("T")

MESSAGE_BYTES_MAX = 1 << 30
"""Largest value that one rank tells the others; a batch has to fit."""
DIMENSIONS_MAX = 8

_DTYPES = {
    str(dtype): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
    )
}


class _Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor on its way."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes


def encode(value: Any) -> bytes:
    """The bytes of a value. Raises RunFailed for what does not fit, or is no data."""
    try:
        payload = msgspec.msgpack.encode(value, enc_hook=_pack)
    except (TypeError, *UNREADABLE) as error:
        raise RunFailed(f"a learner's rank cannot tell {type(value).__name__}: {error}") from error
    if len(payload) > MESSAGE_BYTES_MAX:
        raise RunFailed(_too_long(len(payload)))
    return payload


def decode(payload: bytes, kind: type[T]) -> T:
    """The value of that type. Raises RunFailed for bytes that hold no such value."""
    try:
        return msgspec.msgpack.decode(payload, type=kind, dec_hook=_unpack)
    except (ValueError, *UNREADABLE) as error:
        raise RunFailed(
            f"a learner's rank was told {len(payload)} bytes that are no {kind}: {error};"
            " see who may reach the ranks' ports"
        ) from error


def broadcast(payload: bytes | None, device: torch.device) -> bytes:
    """Rank 0's bytes on every rank; ``payload`` is None elsewhere. Raises RunFailed past the bound."""
    size = torch.tensor([len(payload or b"")], dtype=torch.int64, device=device)
    torch.distributed.broadcast(size, src=0)
    content = _content(payload or b"", _checked(int(size)), device)
    torch.distributed.broadcast(content, src=0)
    return payload if payload is not None else _bytes(content[: int(size)])


def gather(payload: bytes, world_size: int, device: torch.device) -> list[bytes]:
    """Every rank's bytes, by rank. Raises RunFailed past the bound."""
    own = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    found = [torch.zeros_like(own) for _ in range(world_size)]
    torch.distributed.all_gather(found, own)
    sizes = [_checked(int(size)) for size in found]
    contents = [_content(b"", max(sizes), device) for _ in sizes]
    torch.distributed.all_gather(contents, _content(payload, max(sizes), device))
    return [_bytes(content[:size]) for content, size in zip(contents, sizes, strict=True)]


def _content(payload: bytes, size: int, device: torch.device) -> torch.Tensor:
    """``size`` bytes as a tensor, those of ``payload`` first; never empty, which no collective takes."""
    content = torch.zeros(max(1, size), dtype=torch.uint8)
    if payload:
        content[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return content.to(device)


def _bytes(content: torch.Tensor) -> bytes:
    return content.cpu().numpy().tobytes()


def _checked(size: int) -> int:
    if not 0 <= size <= MESSAGE_BYTES_MAX:
        raise RunFailed(_too_long(size))
    return size


def _too_long(size: int) -> str:
    return (
        f"a value of {size} bytes between the learner's ranks, expected at most {MESSAGE_BYTES_MAX}"
    )


def _pack(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{type(value).__name__} is no data")
    plain = value.detach().cpu().contiguous()
    if str(plain.dtype) not in _DTYPES:
        raise TypeError(f"a tensor of {plain.dtype}")
    content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return _Tensor(dtype=str(plain.dtype), shape=tuple(plain.shape), content=content)


def _unpack(kind: type, told: Any) -> Any:
    if kind is not torch.Tensor:
        raise NotImplementedError(f"no rank is told of {kind}")
    found = msgspec.convert(told, _Tensor)
    dtype = _DTYPES.get(found.dtype)
    if dtype is None:
        raise ValueError(f"a tensor of {found.dtype!r}, expected one of {', '.join(_DTYPES)}")
    shape, size_bytes = found.shape, len(found.content)
    sane = len(shape) <= DIMENSIONS_MAX and all(0 <= n <= MESSAGE_BYTES_MAX for n in shape)
    if not sane or math.prod(shape) * dtype.itemsize != size_bytes:
        raise ValueError(f"a tensor of shape {shape[:DIMENSIONS_MAX]} in {size_bytes} bytes")
    if not found.content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(found.content), dtype=dtype).reshape(shape)

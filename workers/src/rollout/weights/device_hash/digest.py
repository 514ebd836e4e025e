"""Digests of messages made of bytes and tensors: BLAKE3, equal to the host library's, computed by the device.

A message's bytes are copied side by side into a buffer of at most ``WINDOW_BYTES``, hashed, and the next ones follow.
Beside it the device holds 1/32 of the buffer twice, and 32 bytes for every 64 KiB of input. Tensors on several
devices, or more bytes on the host than the buffer has, are the host's to hash.

Where Triton is missing or cannot compile, or a known message gets another digest than the host's, that is logged
once and the host hashes.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from types import ModuleType
from typing import cast

import numpy as np
import torch
from blake3 import blake3

from rollout.weights.device_hash import plan

log = logging.getLogger(__name__)

WINDOW_BYTES = 256 << 20
LEVELS = 6
"""A group's 64 nodes are one after so many levels."""
VALUE_WORDS = 8

_one_at_a_time = Lock()
"""A step names its weights in a thread of its own: one buffer, one compilation."""

Message = Sequence[bytes | torch.Tensor]
"""Its bytes are those of its parts, one after the other; of a tensor its elements in order, little-endian."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``window_bytes``: of the buffer, a multiple of 64 KiB. Lanes of a program that hashes, words of one that copies."""

    window_bytes: int = WINDOW_BYTES
    lanes: int = 128
    words: int = 1024


def device_digests(messages: Sequence[Message]) -> list[bytes] | None:
    """32 bytes a message; None where the host has to hash them, as when no tensor is on a device."""
    tensors = [part for message in messages for part in message if isinstance(part, torch.Tensor)]
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    if len(devices) != 1:
        return None
    device = devices.pop()
    if sum(tensor.nbytes for tensor in tensors if not tensor.is_cuda) > WINDOW_BYTES:
        return None
    with _one_at_a_time:
        return digest_on(device, messages) if hashes_right(device) else None


@lru_cache(maxsize=16)
def hashes_right(device: torch.device) -> bool:
    """Whether this device gives the host's digest of a known message; asked once a process, and logged if not."""
    known = torch.arange(70_001, dtype=torch.int32, device=device).to(torch.uint8)
    parts = (b"known", known, known[1:3000], known[:0])
    host = known.cpu().numpy().tobytes()
    want = blake3(b"known" + host + host[1:3000]).digest()
    try:
        found = digest_on(device, [parts, ()])
    except (ImportError, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        log.warning("the host hashes what lies on %s error=%r", device, error)
        return False
    if found == [want, blake3().digest()]:
        return True
    log.warning("the host hashes what lies on %s error=another digest than the host's", device)
    return False


def digest_on(
    device: torch.device, messages: Sequence[Message], sizes: Sizes | None = None
) -> list[bytes]:
    """32 bytes a message, computed by ``device``.

    Raises ImportError without Triton, RuntimeError (torch's and Triton's) for want of memory or a compiler.
    """
    chosen = sizes or Sizes()
    with _on(device):
        held = _hold(messages, device)
        totals = np.array([sum(one.size_bytes for one in pieces) for pieces in held.messages])
        num_nodes = plan.count_chunks(totals)
        nodes = _hash_chunks(held, totals, chosen)
        for groups, places in plan.plan_levels(num_nodes):
            spread = nodes.new_empty(groups.count * plan.GROUP_NODES, VALUE_WORDS)
            spread[_upload(places, device)] = nodes
            nodes = _reduce(spread, _table(groups, device), chosen)
        values = nodes.cpu().numpy()
    return [values[index].tobytes() for index in range(len(messages))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Where the messages' bytes lie on the device; ``kept`` is what must outlive the reads."""

    messages: list[list[plan.ByteRange]]
    zeros: torch.Tensor
    kept: list[torch.Tensor]


def _hold(messages: Sequence[Message], device: torch.device) -> _Held:
    kept: list[torch.Tensor] = []
    laid: list[list[plan.ByteRange]] = []
    uploads = bytearray()
    waiting: list[tuple[int, int, int]] = []
    for message in messages:
        pieces: list[plan.ByteRange] = []
        for part in message:
            if isinstance(part, torch.Tensor) and part.device == device:
                flat = part.detach().contiguous()
                kept.append(flat)
                pieces.append(plan.ByteRange(address=flat.data_ptr(), size_bytes=flat.nbytes))
            else:
                raw = part if isinstance(part, bytes) else _host_bytes(part)
                waiting.append((len(laid), len(pieces), len(uploads)))
                pieces.append(plan.ByteRange(address=0, size_bytes=len(raw)))
                uploads += raw
        laid.append(pieces)
    sent = torch.frombuffer(uploads or bytearray(1), dtype=torch.uint8).to(device)
    for message, index, offset in waiting:
        size = laid[message][index].size_bytes
        laid[message][index] = plan.ByteRange(address=sent.data_ptr() + offset, size_bytes=size)
    zeros = torch.zeros(plan.BLOCK_BYTES, dtype=torch.uint8, device=device)
    return _Held(messages=laid, zeros=zeros, kept=[*kept, sent])


def _host_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Of every group, on the device: its first node's number, and the nodes of its message."""

    base: torch.Tensor
    total: torch.Tensor

    def part(self, window: slice) -> _Table:
        return _Table(base=self.base[window], total=self.total[window])


def _table(groups: plan.Groups, device: torch.device) -> _Table:
    return _Table(base=_upload(groups.base, device), total=_upload(groups.total, device))


def _hash_chunks(held: _Held, totals: np.ndarray, sizes: Sizes) -> torch.Tensor:
    """One node a group, [groups, 8], window by window."""
    device = held.zeros.device
    groups = plan.plan_groups(plan.count_chunks(totals))
    counts = np.diff(np.append(groups.first, groups.count))
    tiles = plan.plan_tiles(held.messages, groups.first, held.zeros.data_ptr())
    per_window = max(1, min(groups.count, sizes.window_bytes // plan.GROUP_BYTES))
    edges = np.append(np.arange(0, groups.count, per_window), groups.count)
    rows = np.searchsorted(tiles[:, 1], edges * plan.GROUP_BYTES).tolist()
    copies, size = _upload(tiles, device), _upload(np.repeat(totals, counts), device)
    table = _table(groups, device)
    buffer = torch.empty(per_window * plan.GROUP_BYTES, dtype=torch.uint8, device=device)
    nodes = torch.empty(groups.count, VALUE_WORDS, dtype=torch.int32, device=device)
    for index, (start, stop) in enumerate(pairwise(edges.tolist())):
        window = slice(start, stop)
        todo = copies[rows[index] : rows[index + 1]]
        _kernels().pack_tiles[(len(todo),)](
            todo, buffer, start * plan.GROUP_BYTES, BLOCK=sizes.words
        )
        values = _chunk_values(buffer, table.base[window], size[window], sizes)
        nodes[window] = _reduce(values, table.part(window), sizes)
    return nodes


def _chunk_values(
    buffer: torch.Tensor, base: torch.Tensor, size: torch.Tensor, sizes: Sizes
) -> torch.Tensor:
    count = len(base) * plan.GROUP_NODES
    values = torch.empty(count, VALUE_WORDS, dtype=torch.int32, device=buffer.device)
    grid = (-(-count // sizes.lanes),)
    _kernels().chunk_values[grid](buffer, values, base, size, count, BLOCK=sizes.lanes)
    return values


def _reduce(values: torch.Tensor, table: _Table, sizes: Sizes) -> torch.Tensor:
    """From 64 nodes a group to one."""
    for level in range(LEVELS):
        count = len(values) // 2
        out = torch.empty(count, VALUE_WORDS, dtype=torch.int32, device=values.device)
        grid = (-(-count // sizes.lanes),)
        _kernels().parent_values[grid](
            values, out, table.base, table.total, level, count, BLOCK=sizes.lanes
        )
        values = out
    return values


def _upload(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers, np.int64)).to(device)


def _kernels() -> ModuleType:
    from rollout.weights.device_hash import kernels

    return kernels


def _on(device: torch.device) -> AbstractContextManager[object]:
    found = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    return cast("AbstractContextManager[object]", found)

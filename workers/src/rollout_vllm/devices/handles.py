"""What names a piece of a GPU's memory to another process of the machine, as plain numbers and text: no pickle.

vLLM's client sends the arguments of torch's ``rebuild_cuda_tensor`` over HTTP as a pickle, which runs whatever it holds. Of
these arguments only numbers and short bytes are told here; classes are always a plain tensor's, the device is the receiver's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rollout_vllm.sending.heads import NAMES

DIMENSIONS_MAX = 8
NUMBER_MAX = 1 << 48
BYTES_MAX = 256
"""Of one of CUDA's handles, which have 64 to 66."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}
FIELDS = (
    "size",
    "stride",
    "offset",
    "dtype",
    "memory",
    "memoryBytes",
    "memoryOffset",
    "counter",
    "counterOffset",
    "event",
    "waits",
)

Plain = Mapping[str, Any]


def tell_handle(arguments: Sequence[Any]) -> Plain:
    """As JSON takes it. ``arguments``: what ``reduce_tensor`` gives of a tensor on a GPU. Raises ValueError for what has no memory."""
    _, size, stride, offset, _, dtype, _, memory, size_bytes, at, _, *rest = arguments
    counter, counter_at, event, waits = rest
    if memory is None or counter is None:
        raise ValueError("a tensor without elements has no memory to name")
    values = (
        *(list(size), list(stride), offset, str(dtype).removeprefix("torch.")),
        *(_text(memory), size_bytes, at, _text(counter), counter_at, _text(event), bool(waits)),
    )
    return dict(zip(FIELDS, values, strict=True))


def parse_handle(said: Any, device_index: int) -> tuple[Any, ...]:
    """The arguments of ``rebuild_cuda_tensor``. Raises ValueError for anything but numbers and bytes within bounds."""
    if not isinstance(said, dict) or said.keys() != set(FIELDS):
        raise ValueError(f"a handle has {', '.join(FIELDS)}, got {_short(said)}")
    size, stride = (_numbers(said, name) for name in ("size", "stride"))
    if len(size) != len(stride):
        raise ValueError(f"a handle of {len(size)} dimensions has {len(stride)} strides")
    if said["dtype"] not in DTYPES:
        raise ValueError(f"a handle of {_short(said['dtype'])}: expected one of {sorted(DTYPES)}")
    if type(said["waits"]) is not bool:
        raise ValueError(f"waits: expected true or false, got {_short(said['waits'])}")
    return (
        *(torch.Tensor, torch.Size(size), tuple(stride), _number(said, "offset")),
        *(torch.UntypedStorage, DTYPES[said["dtype"]], device_index, _bytes(said, "memory")),
        *(_number(said, "memoryBytes"), _number(said, "memoryOffset"), False),
        *(_bytes(said, "counter"), _number(said, "counterOffset")),
        *(_bytes(said, "event"), said["waits"]),
    )


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(said: Plain, name: str) -> bytes:
    text = said[name]
    if not isinstance(text, str) or len(text) > BYTES_MAX:
        raise ValueError(
            f"{name}: expected base64 of at most {BYTES_MAX} letters, got {_short(text)}"
        )
    return base64.b64decode(text, validate=True)


def _number(said: Plain, name: str) -> int:
    return _checked(said[name], name)


def _numbers(said: Plain, name: str) -> list[int]:
    found = said[name]
    if not isinstance(found, list) or len(found) > DIMENSIONS_MAX:
        raise ValueError(f"{name}: expected at most {DIMENSIONS_MAX} numbers, got {_short(found)}")
    return [_checked(one, name) for one in found]


def _checked(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError(
            f"{name}: expected a number from 0 to {NUMBER_MAX - 1}, got {_short(value)}"
        )
    return value


def _short(value: Any) -> str:
    return repr(value)[:80]

"""What a caller sends: tokens, what a loss reads beside them, settings of a step and of sampling.

Names, fields and defaults are those that programs for the ``tinker`` client use.

Axes: N tokens of a datum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

ArrayDtype = Literal["float32", "int64"]
WHOLE_NUMBERS = frozenset({"target_tokens"})
"""Inputs whose plain lists are token ids; those of all others are float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTextChunk:
    """A part of an input: token ids."""

    tokens: Sequence[int]
    """Ids of the base's vocabulary."""
    type: Literal["encoded_text"] = "encoded_text"
    """A word of the clients' protocol; always this one."""

    @property
    def length(self) -> int:
        """How many tokens."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """Tokens in parts."""

    chunks: Sequence[EncodedTextChunk]
    """Read one after the other; how tokens are cut into parts changes nothing."""

    @classmethod
    def from_ints(cls, tokens: Sequence[int]) -> ModelInput:
        """An input of one part."""
        return cls(chunks=[EncodedTextChunk(tokens=list(tokens))])

    @classmethod
    def empty(cls) -> ModelInput:
        """An input of no part."""
        return cls(chunks=[])

    def to_ints(self) -> list[int]:
        """All tokens."""
        return [token for chunk in self.chunks for token in chunk.tokens]

    @property
    def length(self) -> int:
        """How many tokens."""
        return sum(chunk.length for chunk in self.chunks)

    def append(self, chunk: EncodedTextChunk) -> ModelInput:
        """Another input, longer by a part."""
        return ModelInput(chunks=[*self.chunks, chunk])

    def append_int(self, token: int) -> ModelInput:
        """Another input, longer by a token."""
        return self.append(EncodedTextChunk(tokens=[token]))


class TensorData:
    """Numbers with their type and shape. Raises ValueError where ``shape`` does not hold them."""

    __slots__ = ("_array", "dtype", "shape")

    def __init__(
        self,
        data: Any,
        dtype: ArrayDtype,
        shape: Sequence[int] | None = None,
    ) -> None:
        array = np.ascontiguousarray(data, dtype=np.dtype(dtype).newbyteorder("<"))
        self._array = array if shape is None else array.reshape(tuple(shape))
        self.dtype: ArrayDtype = dtype
        self.shape = list(self._array.shape)

    @classmethod
    def from_numpy(cls, array: np.ndarray) -> TensorData:
        """Of an array: whole numbers become int64, others float32."""
        return cls(array, "int64" if array.dtype.kind in "iub" else "float32")

    @classmethod
    def from_torch(cls, tensor: Any) -> TensorData:
        """Of a tensor of torch's."""
        return cls.from_numpy(tensor.detach().cpu().numpy())

    @property
    def data(self) -> list[Any]:
        """The numbers in a row."""
        return self._array.ravel().tolist()

    def to_numpy(self) -> np.ndarray:
        """The numbers as they are kept; not to be written to."""
        return self._array

    def to_torch(self) -> Any:
        """A tensor of torch's with a copy of the numbers."""
        import torch

        return torch.from_numpy(self._array.copy())

    def tolist(self) -> list[Any]:
        """The numbers in lists, one axis in another."""
        return self._array.tolist()

    def __repr__(self) -> str:
        return f"TensorData(dtype={self.dtype!r}, shape={self.shape})"


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence of N tokens, and what a loss reads beside it."""

    model_input: ModelInput
    """[N]."""
    loss_fn_inputs: Mapping[str, Any] = field(default_factory=dict)
    """By name (``target_tokens``, ``weights``, ``logprobs``, ``advantages``): lists, arrays, tensors or TensorData of
    [N], kept as TensorData."""

    def __post_init__(self) -> None:
        known = {name: as_tensor(name, value) for name, value in self.loss_fn_inputs.items()}
        object.__setattr__(self, "loss_fn_inputs", known)


def as_tensor(name: str, value: Any) -> TensorData:
    """An input of a loss as numbers. Raises TypeError, ValueError for what is none."""
    if isinstance(value, TensorData):
        return value
    if hasattr(value, "detach"):
        return TensorData.from_torch(value)
    if isinstance(value, np.ndarray):
        return TensorData.from_numpy(value)
    return TensorData(value, "int64" if name in WHOLE_NUMBERS else "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """AdamW's numbers for one step."""

    learning_rate: float = 1e-4
    """Of this step: a schedule is the caller's."""
    beta1: float = 0.9
    """Decay of the first moment, in [0, 1)."""
    beta2: float = 0.95
    """Decay of the second moment, in [0, 1)."""
    eps: float = 1e-12
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled: times the learning rate; 0: none."""
    grad_clip_norm: float = 0.0
    """Norm to which the gradient is clipped; 0 does not clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How to sample."""

    max_tokens: int | None = None
    """Most tokens of a completion; None: as many as the context holds."""
    seed: int | None = None
    """Of the noise: equal calls with equal seeds give equal tokens; None: the service draws from the call's own
    place."""
    stop: str | Sequence[str] | Sequence[int] | None = None
    """Texts or token ids that end a completion; None: the base's end tokens; an empty list: nothing does."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_k: int = -1
    """So many of the likeliest tokens may be drawn; -1: all."""
    top_p: float = 1.0
    """The likeliest tokens that together have this probability, in (0, 1]; 1: all."""

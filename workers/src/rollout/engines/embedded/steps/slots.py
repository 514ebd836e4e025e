"""Where the steps of a decoder keep what they read and write: storage that does not move between batches.

``Room`` has the caches of all layers, taken from the front by whatever batch there is, and ``Slots`` the small
tensors of one shape with the steps captured for it. Caches that must grow move, and every captured step is dropped.

Axes: N rows, S samples <= N, T own tokens, D head size, K key-value heads, B groups, V vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from rollout.engines.embedded.cuda_attention import SideBySide
from rollout.engines.embedded.model import CompactModel
from rollout.engines.embedded.steps.capture import Capture, Captured, Step

READ_EVERY = 8
"""Tokens that are drawn before the host looks at them."""
ROWS = 8
"""Rows of a batch in no fixed shape are a multiple of this."""
SHAPES_MAX = 8
"""Shapes that are remembered."""
STEPS_MAX = 8
"""Captured steps of one shape."""
STRETCH = 256
"""Own tokens that one captured step serves: it writes its token among so many places."""
PROMPT_TOKENS = 1024
"""Storage for prompts grows by this many tokens."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``rows`` N and ``room`` for T own tokens of each."""

    rows: int
    room: int


def room_for(num_tokens: int) -> int:
    """Places for own tokens: few different numbers, whatever is asked for."""
    if num_tokens > STRETCH:
        return -(-num_tokens // STRETCH) * STRETCH
    return max(16, 1 << max(0, num_tokens - 1).bit_length())


class Slots:
    """The tensors of a step of one shape; ``filled_1`` own tokens of every row have been fed.

    ``layers`` [2, N, T, K, D] lie in the room. Rings of READ_EVERY rows hold what was drawn last: the token at
    position t of a completion in row t modulo READ_EVERY.
    """

    def __init__(
        self, model: CompactModel, shape: Shape, layers: list[torch.Tensor], prompts_max: int
    ) -> None:
        rows, device = shape.rows, model.device

        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.shape, self.layers = shape, layers
        self.filled_1 = zeros(1)
        self.tokens_N, self.lengths_N = zeros(rows), zeros(rows)
        self.noise_TN = zeros(shape.room + 1, rows, dtype=torch.float64)
        self.places_T = torch.arange(shape.room, device=device)
        self.ring_places = torch.arange(READ_EVERY, device=device)[:, None]
        self.ring_tokens = zeros(READ_EVERY, rows)
        self.ring_logprobs = zeros(READ_EVERY, rows, dtype=torch.float32)
        bounds = torch.arange(rows + 1, device=device, dtype=torch.int32)
        self.own = SideBySide(
            queries=bounds,
            queries_max=2,
            keys=bounds * shape.room,
            keys_max=shape.room,
            used=zeros(rows, dtype=torch.int32),
        )
        self.prompts = SideBySide(
            queries=zeros(rows + 2, dtype=torch.int32),
            queries_max=max(2, rows),
            keys=zeros(rows + 2, dtype=torch.int32),
            keys_max=prompts_max,
            used=zeros(rows + 1, dtype=torch.int32),
        )
        self._steps: OrderedDict[object, tuple[Captured, Step]] = OrderedDict()

    def bind(self, spans: Sequence[tuple[int, int]], group_size: int) -> None:
        """Group b reads the prompt tokens ``spans[b]``, a start and a number; spare rows read one token."""
        rows = self.shape.rows
        queries = [*range(0, len(spans) * group_size + 1, group_size)]
        starts, lengths = [start for start, _ in spans], [length for _, length in spans]
        _fill(self.prompts.queries, queries, rows)
        _fill(self.prompts.keys, starts, 0)
        _fill(self.prompts.used, lengths, 1)

    def begin(self, lengths_B: Sequence[int], group_size: int) -> None:
        """Nothing has been fed behind prompts of these lengths."""
        _fill(self.lengths_N, [length for length in lengths_B for _ in range(group_size)], 0)
        self.filled_1.zero_()

    def take(self, other: Slots, rows_N: torch.Tensor, filled: int) -> None:
        """Go on with these rows of another, or of this one."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine[:, :, :filled] = theirs[:, :, :filled].index_select(1, rows_N)
        self.tokens_N.copy_(other.tokens_N[rows_N])
        self.lengths_N.copy_(other.lengths_N[rows_N])
        self.noise_TN.copy_(other.noise_TN.index_select(1, rows_N))
        self.filled_1.copy_(other.filled_1)

    def run(self, kind: object, step: Step, capture: Capture) -> None:
        """Take a step: captured if one of this kind has been taken before, plainly the first time."""
        if kind in self._steps:
            self._steps.move_to_end(kind)
            self._steps[kind][0].replay()
            return
        step()
        beside = next(iter(self._steps.values()))[0] if self._steps else None
        self._steps[kind] = (capture(step, beside), step)
        if len(self._steps) > STEPS_MAX:
            self._steps.popitem(last=False)


class Room:
    """Caches for the largest batch so far, own ones [2 * N * T * K * D] and prompts' [2, P, K, D] a layer."""

    def __init__(self, model: CompactModel) -> None:
        self._model = model
        self._own: list[torch.Tensor] = []
        self.prompts: list[torch.Tensor] = []
        self._slots: OrderedDict[Shape, Slots] = OrderedDict()
        self.holder: object = None

    def fit(self, shape: Shape, prompt_tokens: int) -> None:
        """Room for such a batch. What is in the caches is lost where they grow, and so are captured steps."""
        config = self._model.config
        head = config.num_kv_heads * config.head_size
        own, tokens = 2 * shape.rows * shape.room * head, _whole(prompt_tokens, PROMPT_TOKENS)
        if not self._own or own > len(self._own[0]):
            self.forget()
            self._own = []  # before more is asked for
            self._own = [self._empty(own) for _ in range(config.num_layers)]
        if not self.prompts or tokens > self.prompts[0].shape[1]:
            self.forget()
            self.prompts = []
            self.prompts = [
                self._empty(2, tokens, config.num_kv_heads, config.head_size)
                for _ in range(config.num_layers)
            ]

    def slots(self, shape: Shape) -> Slots:
        """Those of a shape that fits."""
        if shape not in self._slots:
            config = self._model.config
            size = (2, shape.rows, shape.room, config.num_kv_heads, config.head_size)
            count = torch.Size(size).numel()
            layers = [own[:count].view(size) for own in self._own]
            self._slots[shape] = Slots(self._model, shape, layers, self.prompts[0].shape[1])
            if len(self._slots) > SHAPES_MAX:
                self._slots.popitem(last=False)
        self._slots.move_to_end(shape)
        return self._slots[shape]

    def forget(self) -> None:
        """Drop all captured steps."""
        self._slots.clear()

    def _empty(self, *size: int) -> torch.Tensor:
        return torch.empty(size, dtype=self._model.dtype, device=self._model.device)


def spans_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Start and number of the tokens of prompts that lie side by side."""
    return list(zip(accumulate(lengths, initial=0), lengths, strict=False))


def _whole(number: int, of: int) -> int:
    return -(-number // of) * of


def _fill(tensor: torch.Tensor, values: Sequence[int], rest: int) -> None:
    whole = [*values, *[rest] * (len(tensor) - len(values))]
    tensor.copy_(torch.tensor(whole, dtype=tensor.dtype))

"""The decoder on fused weights: which kind of batch it opens, and the storage that batches share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rollout.engines.embedded.batch import BatchSize, CompactBatch
from rollout.engines.embedded.config import DecoderConfig
from rollout.engines.embedded.model import CPU, CompactModel
from rollout.engines.embedded.steps.batch import StaticBatch
from rollout.engines.embedded.steps.capture import Capture, capture_graph
from rollout.engines.embedded.steps.slots import Room
from rollout.errors import EngineError


class CompactDecoder:
    """Decoder on the fused weights of ``CompactModel``.

    ``capture``: how steps are made repeatable; None: CUDA graphs where the flash kernel takes the numbers, and
    elsewhere no static steps.
    """

    takes_ragged_prompts = True

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device = CPU,
        capture: Capture | None = None,
    ) -> None:
        self.vocab_size = config.vocab_size
        self.positions_max = config.positions_max
        self._model = CompactModel(config, dtype, device)
        self._capture = capture or (capture_graph if self._model.flash else None)
        self._room = Room(self._model)

    def padded(self, prompt_length: int) -> int:
        """What a prompt is padded to in a fixed shape."""
        return self._model.whole(prompt_length)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take weights by their transformers names. Raises EngineError."""
        if self._model.load(tensors):
            self._room.forget()

    def open(self, prompts: Sequence[Sequence[int]], size: BatchSize) -> CompactBatch | StaticBatch:
        """A batch of ``size.group_size`` samples per prompt, in a fixed shape by rising length. Raises EngineError for routes."""
        if size.routes:
            raise EngineError("the experts of each token are wanted of a model that has none")
        if self._capture is None:
            return CompactBatch(self._model, prompts, size)
        return StaticBatch(self._model, self._room, self._capture, prompts, size)

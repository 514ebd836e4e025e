"""Models in memory: a few, the others whole on the disk, each brought back to where its line stands when a call needs it.

Everything here is for the one thread that computes models.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping

from rollout.errors import LedgerError, StoreError
from rollout.service.kept.replay import Replay
from rollout.service.line import CallLine
from rollout.service.registry import ServiceModel
from rollout.service.training.trained import TrainedModel

log = logging.getLogger(__name__)

ANCHOR_CALLS = 256
"""Calls of a model after which it is kept again."""


class ModelMemory:
    """Owns the models in memory, at most ``at_most`` of them and of ``bytes_max`` together; the one that was used longest ago leaves first.

    ``lines`` are where all models stand, by id, and stay whether a model is in memory or not.
    """

    def __init__(
        self, replay: Replay, lines: Mapping[str, CallLine], *, at_most: int, bytes_max: int
    ) -> None:
        self._replay = replay
        self._lines = lines
        self._at_most, self._bytes_max = at_most, bytes_max
        self._models: OrderedDict[str, TrainedModel] = OrderedDict()
        self._anchored: dict[str, int] = {}

    def __contains__(self, model_id: str) -> bool:
        """Whether the model is in memory."""
        return model_id in self._models

    def __len__(self) -> int:
        """Models in memory."""
        return len(self._models)

    def put(self, model_id: str, model: TrainedModel, busy: str = "") -> None:
        """Hold a model; others leave for it, never the one that is ``busy``, which is ahead of its line."""
        self._models[model_id] = model
        self._models.move_to_end(model_id)
        for name in list(self._models):
            if self._fits():
                break
            if name not in (model_id, busy):
                self._let_go(name)

    def get(self, thing: ServiceModel, stopped: Callable[[], bool]) -> TrainedModel:
        """The model where its line stands. Raises LedgerError where it comes to another chain, StoreError."""
        model = self._models.get(thing.id)
        if model is None:
            model = self._bring_back(thing, stopped)
            self.put(thing.id, model)
        self._models.move_to_end(thing.id)
        return model

    def anchor(self, line: CallLine) -> None:
        """Keep a model as it is, so that its calls need not be made again; where it cannot be kept, they are."""
        self._anchored[line.model_id] = line.done
        try:
            self._replay.anchor(self._models[line.model_id], line)
        except StoreError as error:
            log.warning("model=%s has no new anchor: %s", line.model_id, error)

    def is_due(self, line: CallLine) -> bool:
        """Whether the model has made so many calls since it was kept that it should be again."""
        return line.done - self._anchored.get(line.model_id, 0) >= ANCHOR_CALLS

    def anchor_all(self, busy: str) -> None:
        """Keep every model that is in memory and where its line says."""
        for name in self._models:
            if name != busy:
                self._anchor_news(name)

    def _fits(self) -> bool:
        held = sum(one.num_bytes for one in self._models.values())
        return len(self._models) <= self._at_most and held <= self._bytes_max

    def _anchor_news(self, name: str) -> None:
        line = self._lines[name]
        if not line.broken and line.done > self._anchored.get(name, 0):
            self.anchor(line)

    def _let_go(self, name: str) -> None:
        self._anchor_news(name)
        del self._models[name]

    def _bring_back(self, thing: ServiceModel, stopped: Callable[[], bool]) -> TrainedModel:
        line = self._lines[thing.id]
        found = self._replay.run(thing, stopped)
        if found is None:
            raise LedgerError(f"model {thing.id} was not brought back: the service ends")
        model, at = found
        if (at.done, at.chain) != (line.done, line.chain):
            raise LedgerError(
                f"model {thing.id} came back at call {at.done}, chain {at.chain}, and stood at call {line.done},"
                f" chain {line.chain}: the book was changed"
            )
        return model

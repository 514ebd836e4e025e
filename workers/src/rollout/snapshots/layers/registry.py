"""The layers that this version takes; others are refused by name."""

from __future__ import annotations

from typing import get_args

from rollout.errors import SnapshotRefused
from rollout.snapshots.layers.buffer import Buffer
from rollout.snapshots.layers.contract import Moment, Taken
from rollout.snapshots.layers.memory import EpisodicMemory, memory_of
from rollout.snapshots.layers.train_state import TrainState
from rollout.snapshots.manifest import LayerKind

TRAIN_STATE, BUFFER, MEMORY = TrainState(), Buffer(), EpisodicMemory()
LAYERS = (BUFFER, TRAIN_STATE)
TAKEN = tuple(layer.kind for layer in LAYERS)
"""Of every run."""
KEPT: tuple[LayerKind, ...] = get_args(LayerKind)
"""That a snapshot may hold: an image of a program is one of its own (``rollout process save``), of a run's learner beside the others;
``episodic_memory`` is of runs whose environments have kept something."""


def take_layers(moment: Moment) -> list[Taken]:
    """What a snapshot of that moment holds. Raises StoreError."""
    layers = (*LAYERS, MEMORY) if memory_of(moment.cut) else LAYERS
    return [layer.take(moment) for layer in layers]


def require_kind(kind: str) -> LayerKind:
    """The kind. Raises SnapshotRefused for one that no snapshot of this version holds."""
    for known in KEPT:
        if kind == known:
            return known
    raise SnapshotRefused(f"layer {kind!r}: expected one of {', '.join(KEPT)}")

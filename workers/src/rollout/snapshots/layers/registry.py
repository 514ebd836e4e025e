"""The layers that this version takes; those that it does not are refused by name."""

from __future__ import annotations

from typing import get_args

from rollout.errors import SnapshotRefused
from rollout.snapshots.layers.buffer import Buffer
from rollout.snapshots.layers.train_state import TrainState
from rollout.snapshots.manifest import LayerKind

TRAIN_STATE, BUFFER = TrainState(), Buffer()
LAYERS = (BUFFER, TRAIN_STATE)
TAKEN = tuple(layer.kind for layer in LAYERS)
"""Of every run."""
KEPT: tuple[LayerKind, ...] = (*TAKEN, "process")
"""That a snapshot may hold: an image of a program is one of its own (``rollout process save``), of a run's learner beside the others."""
UNBUILT: dict[LayerKind, str] = {"episodic_memory": "environments keep nothing between episodes"}


def require_kind(kind: str) -> LayerKind:
    """The kind. Raises SnapshotRefused for one that no snapshot of this version holds, or that is none."""
    for known in get_args(LayerKind):
        if kind == known and kind in KEPT:
            return known
        if kind == known:
            raise SnapshotRefused(
                f"layer {kind}: not built in this version of rollout ({UNBUILT[known]}); there are"
                f" {', '.join(KEPT)}"
            )
    raise SnapshotRefused(f"layer {kind!r}: expected one of {', '.join(get_args(LayerKind))}")

"""What saves come to in bytes: what lies on the disk by owner, and what a save would add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollout.service.calls import ModelCall, SaveForSampler, SaveState
from rollout.service.kept.tensors import Keeper
from rollout.service.registry import (
    Registry,
    SavedState,
    SavedVersion,
    ServiceModel,
    ServiceSampler,
)
from rollout.service.tenants.costs import bytes_to_save
from rollout.service.training.bases import TrainingBase


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSizes:
    """Sizes of a service's files. Equal tensors of an owner are one file."""

    registry: Registry
    keeper: Keeper
    bases: Mapping[str, TrainingBase]

    def to_save(self, model_id: str, call: ModelCall) -> int:
        """The most that a call of a model would save."""
        if not isinstance(call, SaveForSampler | SaveState):
            return 0
        model = self.registry.get(ServiceModel, model_id)
        assert model is not None
        weights = self.bases[model.base].weights
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        rank = None if model.adapter is None else model.adapter.rank
        return bytes_to_save(call, shapes, rank)

    def saved(self, owner: str) -> int:
        """Bytes of everything that an owner's models were saved as, with a name or, for a sampler, without."""
        return sum(_size(path) for path in set(self._files(owner)))

    def _files(self, owner: str) -> Iterator[Path]:
        for one in self.registry.all(SavedState):
            if one.owner == owner:
                yield self.keeper.states.path(one.digest)
        for kind in (SavedVersion, ServiceSampler):
            for one in self.registry.all(kind):
                if one.owner == owner and self._is_of_a_model(one):
                    yield self.keeper.weights.path(one.digest)

    def _is_of_a_model(self, one: SavedVersion | ServiceSampler) -> bool:
        """Weights of a base are nobody's."""
        if isinstance(one, SavedVersion):
            return True
        return self.registry.get(ServiceModel, one.id.partition(":sampler:")[0]) is not None


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0

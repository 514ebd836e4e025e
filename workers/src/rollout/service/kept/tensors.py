"""Tensors that are kept: weights that samplers load, states that models begin from, and anchors that a start begins with.

A file is written once, whole, under the digest of its tensors, and never changed; of anchors each model has its newest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from rollout.errors import StoreError
from rollout.service.kept.places import ANCHORS, STATES, SUFFIX, WEIGHTS, tensor_file
from rollout.weights.digest import digest_tensors

TAKEN_AWAY = ".gone-"
"""Before the name of a file whose bytes nobody needs."""
FACTS = "rollout"
"""The entry of a file's metadata that says what it is of."""


class SavedTensors:
    """A folder of files under their digests. With ``writes`` False nothing is written: digests are computed."""

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        self._folder = folder
        self._writes = writes

    def keep(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """Write tensors down and return their digest; equal ones are one file. Raises StoreError."""
        digest = digest_tensors(tensors)
        target = self.path(digest)
        if self._writes and not target.exists():
            write_tensors(target, tensors, {})
        return digest

    def read(self, digest: str) -> dict[str, torch.Tensor]:
        """The tensors of a digest. Raises StoreError where they are not there, or others are."""
        path = self.path(digest)
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        found = digest_tensors(tensors)
        if found != digest:
            raise StoreError(
                f"{path} holds {found}: it was changed; restore it from a copy, or take it away, as calls that are made"
                " again write it again"
            )
        return tensors

    def path(self, digest: str) -> Path:
        """Where the tensors of a digest lie."""
        return tensor_file(self._folder, digest)

    def digests(self) -> set[str]:
        """Of which tensors there is a file."""
        if not self._folder.is_dir():
            return set()
        names = (path.name for path in self._folder.iterdir() if not path.name.startswith("."))
        return {name.removesuffix(SUFFIX).replace("-", ":", 1) for name in names}

    def size(self, digest: str) -> int | None:
        """Bytes of a file; None where there is none."""
        with suppress(FileNotFoundError):
            return self.path(digest).stat().st_size
        return None

    def take_away(self, digest: str) -> None:
        """Tensors are there no more, at once; their bytes stay until ``empty``. Again: nothing. Raises StoreError."""
        path = self.path(digest)
        try:
            path.rename(path.with_name(f"{TAKEN_AWAY}{path.name}"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{path} cannot be taken away: {error}") from error

    def empty(self) -> None:
        """Remove the bytes of what was taken away, now or by a process that was killed. Raises StoreError."""
        try:
            for path in self._folder.glob(f"{TAKEN_AWAY}*"):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self._folder} cannot be emptied: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnchor:
    """A model as it was after call ``seq``, with the names of what it had been saved as. Nothing that is believed unseen."""

    seq: int
    names: tuple[str, ...]
    tensors: Mapping[str, torch.Tensor]


class ModelAnchors:
    """A folder with the newest anchor of each model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, model_id: str, anchor: ModelAnchor) -> None:
        """Put an anchor in the place of the one before. Raises StoreError."""
        facts = {"model": model_id, "seq": anchor.seq, "names": list(anchor.names)}
        write_tensors(self._path(model_id), anchor.tensors, facts)

    def read(self, model_id: str) -> ModelAnchor | None:
        """A model's anchor; None where there is none that can be read."""
        path = self._path(model_id)
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads((file.metadata() or {})[FACTS])
            tensors = load_file(path)
            seq, names = int(facts["seq"]), tuple(map(str, facts["names"]))
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            return None  # a start without it makes the calls again
        return ModelAnchor(seq=seq, names=names, tensors=tensors)

    def _path(self, model_id: str) -> Path:
        return self._folder / f"{blake3(model_id.encode()).hexdigest()}.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Everything that a service keeps beside its book."""

    weights: SavedTensors
    states: SavedTensors
    anchors: ModelAnchors

    @classmethod
    def under(cls, folder: Path, *, writes: bool = True) -> Self:
        """In a service's folder; with ``writes`` False to compare with what lies there."""
        return cls(
            weights=SavedTensors(folder / WEIGHTS, writes=writes),
            states=SavedTensors(folder / STATES, writes=writes),
            anchors=ModelAnchors(folder / ANCHORS),
        )


def write_tensors(
    target: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: Mapping[str, str | int | Sequence[str]],
) -> None:
    """Write a safetensors file that is whole or not there. Raises StoreError."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(ordered, fresh, metadata={"format": "pt", FACTS: json.dumps(facts)})
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(target)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot write {target}: {error}") from error

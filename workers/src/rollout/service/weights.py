"""Weights that samplers load: one safetensors file for each digest, written once and never changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from rollout.errors import StoreError
from rollout.weights.digest import digest_tensors, save_weights


class SavedWeights:
    """The folder of saved weights."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """Write weights down and return their digest; equal weights are one file. Raises StoreError."""
        digest = digest_tensors(tensors)
        target = self.path(digest)
        if target.exists():
            return digest
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save_weights(tensors, fresh)
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(target)
        except OSError as error:
            raise StoreError(f"cannot keep weights as {target}: {error}") from error
        return digest

    def path(self, digest: str) -> Path:
        """Where the weights of a digest lie."""
        return self._folder / f"{digest.replace(':', '-')}.safetensors"

"""Runs inside vLLM's worker: loads a weight version and hashes every tensor that it hands over.

Named to vLLM as its worker extension; it needs neither vLLM's types nor anything of the actor's. It
claims what went into the loader (protocol section 9a), not what the engine's memory holds afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from rollout.weights.digest import combine_digests, digest_tensor


class ReloadsWeights(Protocol):
    """What vLLM's worker gives us."""

    def reload_weights(self, *, weights_iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Load a whole model in checkpoint names, in place."""
        ...


class VersionLoader:
    """Mixed into vLLM's worker class; every public name must be new to that class."""

    def load_version(self: ReloadsWeights, path: str) -> dict[str, Any]:
        """Load the safetensors file at ``path``; the digest and count of the tensors handed over."""
        digests: dict[str, bytes] = {}
        self.reload_weights(weights_iterator=read_tensors(Path(path), digests))
        return {"digest": combine_digests(digests), "num_tensors": len(digests)}


def read_tensors(path: Path, digests: dict[str, bytes]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a file, its digest noted in ``digests`` just before it is handed over."""
    with safe_open(path, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a mapping
            tensor = weights.get_tensor(name)
            digests[name] = digest_tensor(name, tensor)
            yield name, tensor

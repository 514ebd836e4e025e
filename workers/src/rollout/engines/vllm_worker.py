"""Runs inside vLLM's worker: loads a weight version and hashes every tensor that it hands over.

Named to vLLM as its worker extension; it needs neither vLLM's types nor anything of the actor's. It
claims what went into the loader (protocol section 9a), not what the engine's memory holds afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from rollout.weights.digest import combine_digests, digest_tensor


class Worker(Protocol):
    """What vLLM's worker gives us."""

    def reload_weights(self, *, weights_iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Load a whole model in checkpoint names, in place."""
        ...

    def get_model(self) -> torch.nn.Module:
        """The model that is served."""
        ...


class VersionLoader:
    """Mixed into vLLM's worker class; every public name must be new to that class."""

    def load_version(self: Worker, path: str) -> dict[str, Any]:
        """Load the safetensors file at ``path``; the digest and count of the tensors handed over."""
        digests: dict[str, bytes] = {}
        self.reload_weights(weights_iterator=read_tensors(Path(path), digests))
        for module in find_tied(self.get_model().modules()):
            repack(module)
        return {"digest": combine_digests(digests), "num_tensors": len(digests)}


def find_tied(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Modules that share their weight with another one, such as an output head tied to the embeddings."""
    sharers: dict[int, list[torch.nn.Module]] = defaultdict(list)
    for module in modules:
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.numel():
            sharers[weight.data_ptr()].append(module)
    return [module for group in sharers.values() if len(group) > 1 for module in group]


def repack(module: torch.nn.Module) -> None:
    """Prepare a module's kernels from its weight again.

    On a CPU a layer multiplies with a packed copy of its weight. A reload packs the layers that it
    loads, and a tied head is not one of them: it would go on with the copy of the old version.
    """
    method = getattr(module, "quant_method", None)
    if method is not None:
        method.process_weights_after_loading(module)


def read_tensors(path: Path, digests: dict[str, bytes]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a file, its digest noted in ``digests`` just before it is handed over."""
    with safe_open(path, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a mapping
            tensor = weights.get_tensor(name)
            digests[name] = digest_tensor(name, tensor)
            yield name, tensor

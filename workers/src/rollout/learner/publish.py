"""From the policy to a weight version: cast, digest, safetensors bytes, object store."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors.torch import save

from rollout.seams import ObjectStore
from rollout.types import WeightVersion
from rollout.weights.digest import digest_tensors


def publish(
    weights: Mapping[str, torch.Tensor], store: ObjectStore, *, lineage: int, step: int
) -> WeightVersion:
    """Store the weights and return the version that names them; durable when this returns.

    Tensors are laid out by name, so equal weights are one object whoever stores them. Raises StoreError.
    """
    tensors = {name: weights[name].detach().cpu().contiguous() for name in sorted(weights)}
    digest = digest_tensors(tensors)
    stored = store.put(save(tensors, metadata={"format": "pt"}))
    return WeightVersion(lineage=lineage, step=step, digest=digest, object=stored)

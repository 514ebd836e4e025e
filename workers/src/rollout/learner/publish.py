"""From the policy to a weight version: cast, digest, safetensors bytes, object store."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rollout.seams import ObjectStore
from rollout.types import WeightVersion
from rollout.weights.digest import digest_tensors
from rollout.weights.publisher import store_whole


def publish(
    weights: Mapping[str, torch.Tensor], store: ObjectStore, *, lineage: int, step: int
) -> WeightVersion:
    """Store the weights and return the version that names them; durable when this returns.

    Equal weights are one object, whoever stores them. Raises StoreError.
    """
    digest = digest_tensors(weights)
    stored = store_whole(store, weights)
    return WeightVersion(lineage=lineage, step=step, digest=digest, object=stored.object)

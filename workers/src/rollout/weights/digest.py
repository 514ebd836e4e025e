"""The digest of a weight version, and weights as files. What is hashed: ``rollout_vllm.digest``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from rollout.weights.device_hash.digest import device_digests
from rollout.weights.host import host_tensors, read_apart
from rollout_vllm.digest import combine_digests, digest_tensor, tensor_head


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """``blake3:<hex>`` over all tensors, by sorted name; those on a device are hashed there, where it can."""
    found = device_digests([(tensor_head(name, one), one) for name, one in tensors.items()])
    if found is not None:
        return combine_digests(dict(zip(tensors, found, strict=True)))
    host = host_tensors(tensors)
    return combine_digests({name: digest_tensor(name, host[name]) for name in host})


def save_weights(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file readable by another user, names sorted so that equal content is equal bytes."""
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    save_file(ordered, path, metadata={"format": "pt"})
    path.chmod(0o644)


def weight_files(place: Path) -> list[Path]:
    """The safetensors files of a model's folder, by name; a file is its own. Raises FileNotFoundError for a folder without any."""
    if not place.is_dir():
        return [place]
    found = sorted(place.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"{place} has no *.safetensors weights")
    return found


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file, or all of a folder, into CPU tensors in memory of their own.

    A file that is mapped would go on changing under what was made of it: a mirror is patched in place,
    and what was verified must stay what it was. Raises OSError, and ValueError on what is no whole file.
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(path):
        tensors |= read_apart(file)
    return tensors

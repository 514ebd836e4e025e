"""Which of vLLM's modules a checkpoint's tensors belong to, and keeping tied modules in step.

vLLM fuses some projections (query, key and value; gate and up). A fused module must be given whole: with a
part of it, vLLM serves uninitialised memory and reports success.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import torch


def find_modules(
    names: Iterable[str], packed: Mapping[str, Sequence[str]], modules: AbstractSet[str]
) -> dict[str, str | None]:
    """The module that each tensor goes into; None where vLLM has no module of that name.

    ``packed`` is the model's ``packed_modules_mapping``: the parts of each fused module.
    """
    fused = {part: whole for whole, parts in packed.items() for part in parts}
    return {name: _module_of(name, fused, modules) for name in names}


def plan_partial(changed: AbstractSet[str], owners: Mapping[str, str | None]) -> set[str] | None:
    """The modules to load for the changed tensors; None where the whole model has to be loaded."""
    touched = {owners.get(name) for name in changed}
    return None if None in touched else {name for name in touched if name is not None}


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


def _module_of(name: str, fused: Mapping[str, str], modules: AbstractSet[str]) -> str | None:
    path, _, _ = name.rpartition(".")
    parent, _, last = path.rpartition(".")
    module = ".".join(filter(None, (parent, fused.get(last, last))))
    return module if module in modules else None

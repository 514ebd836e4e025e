"""vLLM's weight-transfer engine ``rollout``: loads a version from a file that an actor or a trainer keeps.

An actor patches the file and says which tensors changed; the modules that these belong to are loaded
whole and in place, everything else stays as it is. The whole model is loaded by vLLM's own
``reload_weights``: the first time, after any doubt, and for a model whose modules are not known by name.

It keeps the digest of every tensor that it handed to the loader. The root over all of them is what the
version is checked against; what the engine's memory holds afterwards it does not claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload.inplace import reload_weights
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rollout_vllm.digest import combine_digests
from rollout_vllm.modules import find_modules, find_tied, plan_partial, repack
from rollout_vllm.reading import HashedFile


@dataclass
class Nothing(WeightTransferInitInfo):
    """No connection has to be made: both sides see one folder."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """One version, whole, in the safetensors file ``path``.

    ``changed``: the tensors that differ from the version of digest ``base``, which must be the one that
    was loaded last; None: any may. ``digest``: what the tensors must have been when they were handed to the loader;
    empty: whoever asks compares (``report``).
    """

    path: str
    changed: list[str] | None = None
    base: str = ""
    digest: str = ""


class FileTransferEngine(WeightTransferEngine[Nothing, FileUpdate]):
    """Owns the digests of the tensors that were loaded last, by name."""

    init_info_cls = Nothing
    update_info_cls = FileUpdate
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._digests: dict[str, bytes] = {}
        self._loaded: tuple[str, ...] = ()
        self._modules: dict[str, str | None] = {}

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Nothing to do: what is touched is known with the update only."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without its synchronisation, which a CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    @torch.no_grad()
    def receive_weights(self, update_info: FileUpdate) -> None:
        """Load what changed. Raises RuntimeError where ``base`` is not what is loaded, or ``digest`` is not met."""
        base, self._digests, known = self._root(), {}, self._digests
        if update_info.changed is not None and update_info.base != base:
            raise RuntimeError(
                f"asked for the changes since {update_info.base}, but {base or 'nothing'} is loaded"
            )
        with HashedFile(Path(update_info.path)) as file:
            owners = self._owners(file.names)
            touched = None
            if update_info.changed is not None and known.keys() == set(file.names):
                touched = plan_partial(set(update_info.changed), owners)
            if touched is None:
                known = {}
                self._load_all(file.tensors(file.names))
            else:
                self._load_some(
                    touched, file.tensors([n for n in file.names if owners[n] in touched])
                )
            found = file.digests()
        self._loaded = tuple(found)
        self._digests = known | found
        if update_info.digest and (root := self._root()) != update_info.digest:
            self._digests = {}
            raise RuntimeError(
                f"{update_info.path} was to be {update_info.digest}, and {root} was loaded: do not sample from it; send"
                " the whole version again"
            )

    def finish_weight_update(self) -> None:
        """Nothing to do."""

    def shutdown(self) -> None:
        """Nothing to do."""

    def report(self) -> dict[str, Any]:
        """``digest`` over all tensors as they were handed to the loader; how many were, in all and the last time."""
        return {
            "digest": self._root(),
            "num_tensors": len(self._digests),
            "num_loaded": len(self._loaded),
        }

    def _root(self) -> str:
        return combine_digests(self._digests) if self._digests else ""

    def _owners(self, names: tuple[str, ...]) -> dict[str, str | None]:
        """The module of each tensor; found once, as long as versions have the same tensors."""
        if self._modules.keys() != set(names):
            packed = getattr(self.model, "packed_modules_mapping", {})
            known = {name for name, _ in self.model.named_modules()}
            self._modules = find_modules(names, packed, known)
        return self._modules

    def _load_all(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        reload_weights(
            self.vllm_config,
            self.model,
            weights_iterator=tensors,
            weights_path=None,
            is_checkpoint_format=True,
        )
        for module in find_tied(self.model.modules()):
            repack(module)

    def _load_some(self, names: set[str], tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Reload some modules alone, with vLLM's own machinery for all of them."""
        if not names:
            return
        modules = dict(self.model.named_modules())
        touched = torch.nn.ModuleList([modules[name] for name in sorted(names)])
        initialize_layerwise_reload(touched)
        self.model.load_weights(tensors)  # pyrefly: ignore[not-callable] - every vLLM model has it
        finalize_layerwise_reload(touched, self.model_config)
        tied = find_tied(modules.values())
        if any(module in set(touched) for module in tied):
            for module in tied:
                repack(module)

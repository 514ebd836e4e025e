"""vLLM's own backends between GPUs, every tensor hashed that they hand to the model's loader: ``rollout-nccl``, ``rollout-ipc``.

The transport is vLLM's to its last call. Whoever sent compares the digest that ``report_version`` gives, as actors do. Both
are refused where a server starts: they were rehearsed with a device that is played, and no device has run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.ipc_engine import (
    IPCWeightTransferEngine,
    IPCWeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from rollout_vllm.devices.handles import parse_handle, tell_handle
from rollout_vllm.digest import combine_digests, digest_tensor

UNPROVEN = "unproven until a device has run it: use the backend rollout, which goes through this machine's memory"
HANDLES, PICKLED, PLAIN = "ipc_handles", "ipc_handles_pickled", "handles"
"""What vLLM's trainer gives, what its client for HTTP makes of that, and what we send in their place."""


class UnprovenTransferError(RuntimeError):
    """A backend that no device has run was asked for."""


class HashingLoader:
    """Stands for a model while tensors come in; ``digests`` has those that went through, by name."""

    def __init__(self, model: Any, digests: dict[str, bytes]) -> None:
        self._model = model
        self._digests = digests

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """As the model's, which gets each tensor once it is hashed."""
        return self._model.load_weights(self._hashed(weights))

    def _hashed(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self._digests[name] = digest_tensor(name, tensor)
            yield name, tensor


class Verified:
    """Mixed in before one of vLLM's engines. ``is_proven`` is for whoever has a device to try it on."""

    is_proven: ClassVar[bool] = False
    supports_draft_weight_update = False
    model: Any
    device: torch.device

    def __init__(self, *arguments: Any) -> None:
        """Raises UnprovenTransferError."""
        if not self.is_proven:
            raise UnprovenTransferError(f"{type(self).__name__}: {UNPROVEN}")
        super().__init__(*arguments)
        self._digests: dict[str, bytes] = {}

    def start_weight_update(self) -> None:
        """What was loaded before counts for nothing: versions come whole."""
        self._digests = {}
        super().start_weight_update()  # pyrefly: ignore[missing-attribute] - of the engine behind

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without its synchronisation where there is no device."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        """See vLLM."""
        return super().parse_update_info(update_dict)  # pyrefly: ignore[missing-attribute]

    def receive_weights(self, update_info: Any) -> None:
        """Let the engine behind load, and hash what it hands over."""
        model, self.model = self.model, HashingLoader(self.model, self._digests)
        try:
            super().receive_weights(update_info)  # pyrefly: ignore[missing-attribute]
        finally:
            self.model = model

    def report(self) -> dict[str, Any]:
        """As ``FileTransferEngine.report``."""
        root = combine_digests(self._digests) if self._digests else ""
        num = len(self._digests)
        return {"digest": root, "num_tensors": num, "num_loaded": num}


class VerifiedNccl(Verified, NCCLWeightTransferEngine):
    """Broadcasts from a trainer, across hosts too."""


class VerifiedIpc(Verified, IPCWeightTransferEngine):
    """Memory of the trainer's GPU, read in place; its handles come as plain numbers and text (``PlainHandles``)."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        """Raises ValueError for handles that are pickled, or are none."""
        if update_dict.get(PICKLED) is not None or update_dict.get(HANDLES) is not None:
            raise ValueError(f"{HANDLES}: a pickle is not read; send by PlainHandles")
        index, handles = self.device.index or 0, update_dict.get(PLAIN)
        found = (
            [_parse(one, index) for one in handles]
            if isinstance(handles, list)
            else _parse(handles, index)
        )
        rest = {name: one for name, one in update_dict.items() if name != PLAIN}
        return super().parse_update_info({**rest, HANDLES: found})


class PlainHandles:
    """A client of vLLM's for its IPC trainer, whose handles then travel without pickle."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """See vLLM."""
        self._client.init_weight_transfer_engine(init_info)

    def start_weight_update(self) -> None:
        """See vLLM."""
        self._client.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Raises ValueError for what has no memory to name."""
        handles = update_info[HANDLES]
        told = [_tell(one) for one in handles] if isinstance(handles, list) else _tell(handles)
        rest = {name: one for name, one in update_info.items() if name not in {HANDLES, PICKLED}}
        self._client.update_weights({**rest, PLAIN: told})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """See vLLM."""
        self._client.finish_weight_update(weight_version)


def _tell(by_device: dict[str, Any]) -> dict[str, Any]:
    return {device: tell_handle(arguments) for device, arguments in by_device.items()}


def _parse(by_device: Any, index: int) -> dict[str, Any]:
    if type(by_device) is not dict:
        raise ValueError(f"{PLAIN}: expected a handle by device, got {by_device!r:.80}")
    return {device: parse_handle(said, index) for device, said in by_device.items()}

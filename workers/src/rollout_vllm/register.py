"""The entry point ``vllm.general_plugins``: called once in each of the server's processes."""

from __future__ import annotations

from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.version import __version__

from rollout_vllm.ends import find_stop_texts
from rollout_vllm.stacks import show_on_signal
from rollout_vllm.supported import require_supported

BACKEND = "rollout"
"""Name of both our weight-transfer engines, of servers in ``--weight-transfer-config``."""

ENGINES = {
    BACKEND: ("rollout_vllm.transfer", "FileTransferEngine"),
    "rollout-nccl": ("rollout_vllm.devices.verified", "VerifiedNccl"),
    "rollout-ipc": ("rollout_vllm.devices.verified", "VerifiedIpc"),
}
"""Of servers, by name: where each is found. Those between devices are refused when one is made."""


def register() -> None:
    """Make our weight-transfer engines known, and stop texts found. Raises UnsupportedVllmError; may be called again."""
    register_transfers()
    find_stop_texts()
    show_on_signal()  # a server that does not move is asked where it stands


def register_transfers() -> None:
    """Our weight-transfer engines alone, as a trainer needs them. Raises UnsupportedVllmError; may be called again."""
    require_supported(__version__)
    for name, (module, engine) in ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:  # noqa: SLF001 - it has no look-up
            WeightTransferEngineFactory.register_engine(name, module, engine)
    if BACKEND not in WeightTransferTrainerFactory._registry:  # noqa: SLF001 - likewise
        WeightTransferTrainerFactory.register_engine(
            BACKEND, "rollout_vllm.sending.trainer", "MemoryTrainer"
        )

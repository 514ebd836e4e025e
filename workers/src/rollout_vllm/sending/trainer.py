"""vLLM's interface for trainers, with weights that are verified where they are loaded: backend ``rollout``.

For a training loop of one's own beside a vLLM server on the same machine and of the same user, on any device. A version is
laid out in memory, the server maps it, loads the modules that changed, hashes every tensor that it hands to its loader, and
refuses what has not the digest of what was sent. No pickle, no process group; a server or trainer that dies takes nobody
with it. Pausing the server while weights change is the loop's matter, as with vLLM's own backends.

    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    register_transfers()
    sender = WeightTransferTrainerFactory.trainer_init(MemoryTrainerInit(rank=0), client=client, source=source)
    sender.send_weights()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from rollout_vllm.sending.layout import Declared, LaidOut, VersionMemory


@dataclass
class MemoryTrainerInit(TrainerInitInfo):
    """``rank`` 0 sends; the other ranks of a trainer gather with it."""

    backend: ClassVar[str] = "rollout"


class MemoryTrainer(TrainerWeightTransferEngine[MemoryTrainerInit]):
    """Owns the memory that versions are sent through, and knows what the server has verified last."""

    init_info_cls = MemoryTrainerInit

    def __init__(
        self, *, client: VLLMWeightSyncClient, source: WeightSource, is_sender: bool = True
    ) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._source = source
        self._memory = VersionMemory()
        self._sent: LaidOut | None = None

    @classmethod
    def trainer_init(
        cls,
        init_info: MemoryTrainerInit,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """See vLLM. Raises ValueError without a source."""
        if source is None:
            raise ValueError(f"backend {init_info.backend}: expected a WeightSource, got none")
        made = cls(client=client, source=source, is_sender=init_info.is_sender)
        if made.is_sender:
            client.init_weight_transfer_engine({})
        return made

    def send_weights(self, weight_version: str | None = None) -> None:
        """Bring the server to the source's present weights; it serves them under ``weight_version``.

        Raises what the client raises when the server refuses them, as it does where a digest is not met: it must not be
        resumed then. The next call sends the whole again.
        """
        declared = [Declared(one.name, one.dtype, one.shape) for one in self._source.metadata()]
        if not self.is_sender:
            for _ in self._source:
                """Gathering is collective: every rank takes part."""
            return
        before, self._sent = self._sent, None
        version = self._memory.lay_out(declared, self._source)
        self.client.start_weight_update()
        self.client.update_weights(_describe(version, before))
        if weight_version is None:
            self.client.finish_weight_update()
        else:
            self.client.finish_weight_update(weight_version)
        self._sent = version

    def shutdown(self) -> None:
        """Give the memory back."""
        self._memory.close()


def _describe(version: LaidOut, before: LaidOut | None) -> dict[str, Any]:
    """``rollout_vllm.transfer.FileUpdate``: what changed, where the server has verified what was before."""
    update: dict[str, Any] = {"path": str(version.path), "digest": version.digest}
    if before is not None and before.tensors.keys() == version.tensors.keys():
        old = before.tensors
        changed = sorted(name for name, one in version.tensors.items() if old[name] != one)
        update |= {"changed": changed, "base": before.digest}
    return update

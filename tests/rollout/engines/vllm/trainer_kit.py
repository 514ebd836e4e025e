"""A training loop of one's own, as tests play it: weights that change as a test likes, and our backend that sends them."""

from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from rollout_vllm.register import register_transfers
from rollout_vllm.sending.trainer import MemoryTrainer, MemoryTrainerInit


class Tensors(WeightSource):
    """Tensors by name that a test changes as it likes; ``seen`` names those that were taken, in order."""

    def __init__(self, tensors) -> None:
        self.tensors = dict(tensors)
        self.seen: list[str] = []

    def metadata(self):
        return [ParamMeta(name, one.dtype, tuple(one.shape)) for name, one in self.tensors.items()]

    def __iter__(self):
        for name, tensor in self.tensors.items():
            self.seen.append(name)
            yield name, tensor


def begin(client, source, rank=0) -> MemoryTrainer:
    """Our backend, as vLLM's factory makes it."""
    register_transfers()
    made = WeightTransferTrainerFactory.trainer_init(
        MemoryTrainerInit(rank=rank), client=client, source=source
    )
    assert isinstance(made, MemoryTrainer)
    return made

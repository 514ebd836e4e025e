"""The learner's ranks: one process, or several under torchrun; replicated or sharded.

Every rank runs the same loop in lockstep. Rank 0 alone talks to the coordinator, the object store and
the disk: ``on_main`` runs there and hands its result (or its failure) to all. Gradients are *summed*
over ranks; losses carry global denominators, so a sum is right whatever each rank was given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch.distributed.rendezvous import rendezvous

from rollout.errors import RunFailed
from rollout.learner.forward.sequence_parallel.slices import SequenceGroup
from rollout.learner.model import exchange
from rollout.protocol.rendezvous import RENDEZVOUS_VARIABLE

COLLECTIVE_SECONDS_MAX = 1800.0
"""Longest time a rank waits for the others; the longest step must fit."""

FAILURE_CHARACTERS_MAX = 4096
CPU = torch.device("cpu")
_DONE, _FAILED = b"\0", b"\1"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """This process's place. ``sharded`` means that parameters are FSDP2 shards (DTensors).

    ``reshards`` frees a layer's gathered parameters between forward and backward. ``sequences``: the neighbours with
    whom this rank shares each sequence; None: it computes its own.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU
    sharded: bool = False
    reshards: bool = True
    sequences: SequenceGroup | None = None

    @property
    def num_shares(self) -> int:
        """Parts that the samples of an update are shared out in: ranks, or groups of those that share sequences."""
        return (
            self.world_size if self.sequences is None else self.world_size // self.sequences.ranks
        )

    @property
    def share(self) -> int:
        """Which of them this rank computes."""
        return self.rank if self.sequences is None else self.rank // self.sequences.ranks

    @property
    def counts(self) -> bool:
        """Whether losses of this rank count: of those that share sequences, the first one's."""
        return self.sequences is None or self.sequences.rank == 0

    @property
    def is_main(self) -> bool:
        """Whether this rank talks to the rest of the run."""
        return self.rank == 0

    def on_main(self, work: Callable[[], T], kind: type[T]) -> T:
        """Run ``work`` on rank 0 only and return its result, which is a ``kind``, on every rank.

        What it raises on rank 0 is raised there, and as RunFailed elsewhere, so that no rank is left
        waiting.
        """
        if self.world_size == 1:
            return work()
        if not self.is_main:
            return self._hear(kind)
        try:
            value = work()
            payload = _DONE + exchange.encode(value)
        except BaseException as error:
            exchange.broadcast(_FAILED + f"{type(error).__name__}: {error}".encode(), self.device)
            raise
        exchange.broadcast(payload, self.device)
        return value

    def _hear(self, kind: type[T]) -> T:
        told = exchange.broadcast(None, self.device)
        if told[:1] == _DONE:
            return exchange.decode(told[1:], kind)
        said = told[1:].decode(errors="replace")
        raise RunFailed(f"rank 0 of the learner failed: {said[:FAILURE_CHARACTERS_MAX]}")

    def gather(self, value: T, kind: type[T]) -> list[T]:
        """Every rank's value, each a ``kind``, by rank, on every rank; tensors on the CPU."""
        if self.world_size == 1:
            return [value]
        told = exchange.gather(exchange.encode(value), self.world_size, self.device)
        return [exchange.decode(one, kind) for one in told]

    def add_up(self, tensor: torch.Tensor) -> None:
        """Sum over ranks, in place."""
        if self.world_size > 1:
            torch.distributed.all_reduce(tensor)

    def maximum(self, tensor: torch.Tensor) -> None:
        """Maximum over ranks, in place."""
        if self.world_size > 1:
            torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)

    def close(self) -> None:
        """Leave the process group; call on every rank."""
        if self.world_size > 1:
            torch.distributed.destroy_process_group()


def join(*, sharded: bool, reshards: bool = True, sequence: int = 1) -> Parallel:
    """This process's place as torchrun tells it; alone when it does not.

    Devices: one GPU a rank where there are any, else the CPU (gloo). ``sequence``: ranks that share sequences.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    if world_size > 1 or sharded:
        _start_group(device, alone=world_size == 1)
    rank = int(os.environ.get("RANK", "0"))
    return Parallel(
        rank=rank,
        world_size=world_size,
        device=device,
        sharded=sharded,
        reshards=reshards,
        sequences=_group_sequences(rank, world_size, sequence) if sequence > 1 else None,
    )


def _group_sequences(rank: int, world_size: int, sequence: int) -> SequenceGroup:
    """Neighbours; every rank makes the groups of all."""
    starts = range(0, world_size, sequence)
    groups = [torch.distributed.new_group([*range(one, one + sequence)]) for one in starts]
    return SequenceGroup(rank=rank % sequence, ranks=sequence, group=groups[rank // sequence])


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _start_group(device: torch.device, *, alone: bool) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=COLLECTIVE_SECONDS_MAX)
    if alone:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(
            backend, store=store, rank=0, world_size=1, timeout=timeout
        )
        return
    # Keys of one store, and of another incarnation that reaches it late, are kept apart by their prefix.
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timeout)))
    named = torch.distributed.PrefixStore(os.environ.get(RENDEZVOUS_VARIABLE, ""), store)
    torch.distributed.init_process_group(
        backend, store=named, rank=rank, world_size=world_size, timeout=timeout
    )


def shard(
    model: torch.nn.Module,
    layers: Sequence[torch.nn.Module],
    dtype: torch.dtype | None,
    *,
    reshards: bool = True,
) -> None:
    """Shard parameters over all ranks (FSDP2): forward in ``dtype``, gradients summed in float32.

    ``dtype`` None gathers every parameter in its own; those that are trained must share one.
    ``reshards`` is about the layers: what lies around them stays gathered until the backward pass.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in [*layers, model]:
        kept = None if module is model else reshards
        sharded = fully_shard(module, mp_policy=policy, reshard_after_forward=kept)
        assert isinstance(sharded, FSDPModule)
        sharded.set_force_sum_reduction_for_comms(enable=True)
        sharded.set_gradient_divide_factor(1.0)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a shard (a collective: call on every rank); anything else as it is.

    A shard that lies on the host goes to the device first, where the ranks meet.
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor
    there = tensor.to(tensor.device_mesh.device_type)
    assert isinstance(there, DTensor)
    return there.full_tensor()


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's shard of ``full``, laid out as ``like``; ``full`` itself when that is no shard."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or full.ndim == 0:
        return full
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)


def reshard(model: torch.nn.Module) -> None:
    """Give back what a forward without a backward pass has left gathered, before anybody reads the parameters."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()

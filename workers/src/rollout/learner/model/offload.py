"""An optimizer whose states lie in host memory between steps, and on the device a bounded piece at a time.

The optimizer's own kernels compute a step, on the device, with the numbers that they would have had there: which part of
a parameter is computed with which changes no bit. So a run may go on with states offloaded that it began without.
Parameters and gradients stay where they are. Only for optimizers that treat each number by itself, as ours do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rollout.learner.model.parallel import local_part
from rollout.weights.host import pin_in_place
from rollout_api.checks.accelerators.memory import PIECE_NUMBERS

ALIGNMENT = 1024
"""A parameter is cut at multiples of so many numbers: kernels, and threads, then take the ones that they took before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlice:
    """Numbers ``start`` to ``stop`` of what this rank has of parameter ``index``, counted in their order."""

    index: int
    start: int
    stop: int


def plan_pieces(sizes: Sequence[int], numbers_max: int) -> list[list[ParameterSlice]]:
    """All numbers of parameters of these sizes, in their order, in pieces of at most ``numbers_max`` (>= ``ALIGNMENT``)."""
    assert numbers_max >= ALIGNMENT
    pieces: list[list[ParameterSlice]] = [[]]
    room = numbers_max
    for index, size in enumerate(sizes):
        start = 0
        while True:
            stop = size if size - start <= room else start + room // ALIGNMENT * ALIGNMENT
            if stop > start or not size:
                pieces[-1].append(ParameterSlice(index=index, start=start, stop=stop))
                room -= stop - start
            if stop == size:
                break
            start, room = stop, numbers_max
            pieces.append([])
    return [piece for piece in pieces if piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """A parameter of a step: its group, and the states that it had ``before``; none in its first step."""

    group: int
    parameter: nn.Parameter
    before: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSide:
    """What a device needs of the host that it copies from and to."""

    pin: Callable[[Tensor], None] = pin_in_place
    """Makes memory that stays there one that a device copies at full speed."""
    settle: Callable[[torch.device], None] = torch.cuda.synchronize
    """Returns once everything is done that the device was asked to do."""


class OffloadedOptimizer(Optimizer):
    """``state`` holds an entry as large as its parameter on the host, laid out as the parameter, others on the device.

    ``numbers_max`` of each such entry lie on the device at once. Of shards the host has this rank's.
    """

    def __init__(
        self, inner: Optimizer, *, numbers_max: int = PIECE_NUMBERS, host: HostSide | None = None
    ) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self._inner = inner
        self._numbers_max = numbers_max
        self._host = host or HostSide()
        self._rooms: dict[tuple[nn.Parameter, str], Tensor] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyrefly: ignore - nobody here has closures
        """Move every parameter that has a gradient; returns once the host has the new states."""
        assert closure is None
        moved = self._with_gradients()
        sizes = [local_part(one.parameter).numel() for one in moved]
        for piece in plan_pieces(sizes, self._numbers_max):
            self._take([(moved[part.index], part) for part in piece])
        for device in {one.parameter.device for one in moved}:
            if device.type != "cpu":
                self._host.settle(device)

    @torch.no_grad()
    def load(self, states: Iterable[tuple[nn.Parameter, Mapping[str, Tensor]]]) -> None:
        """Forget all states and take these, each laid out as its parameter, from wherever they lie."""
        self.state.clear()
        for parameter, entries in states:
            for key, value in entries.items():
                if value.ndim == 0:
                    self.state[parameter][key] = value.to(parameter.device, copy=True)
                else:
                    local_part(self._room(parameter, key)).copy_(local_part(value))

    def _with_gradients(self) -> list[_Moved]:
        return [
            _Moved(group=index, parameter=one, before=dict(self.state.get(one, {})))
            for index, group in enumerate(self.param_groups)
            for one in group["params"]
            if one.grad is not None
        ]

    def _take(self, piece: Sequence[tuple[_Moved, ParameterSlice]]) -> None:
        """The step of one piece: its states come, the kernels run, the states go."""
        numbers = [_numbers(one.parameter, part) for one, part in piece]
        chosen: list[list[Tensor]] = [[] for _ in self.param_groups]
        for (one, part), some in zip(piece, numbers, strict=True):
            self._inner.state[some] = _bring(one, part)
            chosen[one.group].append(some)
        self._inner.param_groups = [
            {**group, "params": some}
            for group, some in zip(self.param_groups, chosen, strict=True)
            if some
        ]
        self._inner.step()
        for (one, part), some in zip(piece, numbers, strict=True):
            self._keep(one.parameter, part, self._inner.state[some])
        self._inner.state.clear()
        self._inner.param_groups = []

    def _keep(
        self, parameter: nn.Parameter, part: ParameterSlice, states: Mapping[str, Tensor]
    ) -> None:
        for key, value in states.items():
            if value.ndim:
                _flat(self._room(parameter, key), part).copy_(value, non_blocking=True)
            else:
                self.state[parameter][key] = value

    def _room(self, parameter: nn.Parameter, key: str) -> Tensor:
        """Where the host has an entry of a parameter: made when it is first needed, and kept, since it is pinned."""
        place = (parameter, key)
        if place not in self._rooms:
            made = torch.empty_like(parameter, device="cpu", requires_grad=False)
            if local_part(parameter).device.type != "cpu":
                self._host.pin(local_part(made))
            self._rooms[place] = made
        self.state[parameter][key] = self._rooms[place]
        return self._rooms[place]


def _bring(moved: _Moved, part: ParameterSlice) -> dict[str, Tensor]:
    """A part's states on the device; what counts steps, from where it stood before the first of the parts."""
    device = local_part(moved.parameter).device
    return {
        key: value.clone()
        if value.ndim == 0
        else _flat(value, part).to(device, non_blocking=True, copy=True)
        for key, value in moved.before.items()
    }


def _numbers(parameter: nn.Parameter, part: ParameterSlice) -> Tensor:
    """A part of a parameter as a parameter of its own, its gradient beside it; no copy."""
    numbers = _flat(parameter.detach(), part)
    assert parameter.grad is not None
    numbers.grad = local_part(parameter.grad).reshape(-1)[part.start : part.stop]
    return numbers


def _flat(tensor: Tensor, part: ParameterSlice) -> Tensor:
    return local_part(tensor).view(-1)[part.start : part.stop]

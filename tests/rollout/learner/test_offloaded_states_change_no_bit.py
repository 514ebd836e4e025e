"""Optimizer states that lie in host memory: the numbers of states on the device, and never more than a piece of them there."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_kit import on_two_ranks
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rollout.learner.checkpoint import load_optimizer, restore_anchor, state_groups, whole_groups
from rollout.learner.config.optimizer import OptimizerSettings
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model import offload
from rollout.learner.model.offload import ALIGNMENT, HostSide, OffloadedOptimizer, plan_pieces
from rollout.learner.model.optim import build_optimizer, set_learning_rate
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import Policy, load_model

ADAMW = OptimizerSettings(kind="adamw", learning_rate=0.01, weight_decay=0.1)
MOMENTUM = OptimizerSettings(kind="sgd", learning_rate=0.01, momentum=0.9)
PLAIN = OptimizerSettings(kind="sgd", learning_rate=0.01)
SHAPES = ((3, 1000), (70, 7), (1,), (0,), (5000,), (33,))


@given(st.lists(st.integers(0, 5000), max_size=12), st.integers(1, 4))
def test_pieces_are_all_numbers_once_in_order_and_none_is_too_large(sizes, bound) -> None:
    numbers_max = bound * ALIGNMENT
    pieces = plan_pieces(sizes, numbers_max)
    assert all(sum(part.stop - part.start for part in piece) <= numbers_max for piece in pieces)
    found = [
        (part.index, number)
        for piece in pieces
        for part in piece
        for number in range(part.start, part.stop)
    ]
    assert found == [(index, number) for index, size in enumerate(sizes) for number in range(size)]
    assert {part.index for piece in pieces for part in piece} == set(range(len(sizes)))
    assert all(part.start % ALIGNMENT == 0 for piece in pieces for part in piece)


def trained(settings, numbers_max=None, steps=4):
    """Parameters and states after some steps, the third without a gradient of one of them."""
    draw = torch.Generator().manual_seed(1)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]
    optimizer = build_optimizer(parameters, settings)
    if numbers_max is not None:
        optimizer = OffloadedOptimizer(optimizer, numbers_max=numbers_max)
    for step in range(steps):
        set_learning_rate(optimizer, settings.learning_rate / (step + 1))
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        if step == 2:
            parameters[1].grad = None
        optimizer.step()
    return parameters, [optimizer.state.get(parameter, {}) for parameter in parameters]


@pytest.mark.parametrize("numbers_max", [ALIGNMENT, 3 * ALIGNMENT, 1 << 20])
@pytest.mark.parametrize("settings", [ADAMW, MOMENTUM, PLAIN], ids=["adamw", "momentum", "sgd"])
def test_steps_in_pieces_are_those_of_the_whole(settings, numbers_max) -> None:
    wanted, wanted_states = trained(settings)
    found, states = trained(settings, numbers_max)
    assert all(map(torch.equal, found, wanted))
    for one, other in zip(states, wanted_states, strict=True):
        assert set(one) == set(other)
        assert all(torch.equal(one[key], other[key]) for key in one)


class Alive(TorchDispatchMode):
    """Bytes of tensors by the kind of device that they lie on, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = Counter(), Counter()
        self._seen: dict[int, tuple[str, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return found

    def _see(self, tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._seen:
            return
        kind, size = tensor.device.type, storage.nbytes()
        self._seen[storage._cdata] = kind, size
        self.live[kind] += size
        self.peak[kind] = max(self.peak[kind], self.live[kind])
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, place) -> None:
        kind, size = self._seen.pop(place)
        self.live[kind] -= size


def test_a_device_holds_one_piece_of_the_states_and_none_between_steps() -> None:
    pinned, settled = [], []
    host = HostSide(pin=lambda block: pinned.append(block.numel()), settle=settled.append)
    sizes = (40 * ALIGNMENT, 7, 25 * ALIGNMENT)
    piece = 8 * ALIGNMENT
    with FakeTensorMode(), Alive() as alive:
        parameters = [torch.nn.Parameter(torch.empty(size, device="cuda")) for size in sizes]
        inner = build_optimizer(parameters, ADAMW)
        optimizer = OffloadedOptimizer(inner, numbers_max=piece, host=host)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter)
            before = alive.live["cuda"]
            alive.peak.clear()
            optimizer.step()
            # Both moments of a piece, and as many numbers that count steps as it has parameters.
            assert 0 < alive.peak["cuda"] - before <= piece * 8 + 1024
            assert alive.live["cuda"] - before <= 4 * len(sizes)
    states = [optimizer.state[parameter] for parameter in parameters]
    assert {state[key].device.type for state in states for key in ("exp_avg", "exp_avg_sq")} == {
        "cpu"
    }
    assert alive.live["cpu"] >= 8 * sum(sizes)
    assert sorted(pinned) == sorted(2 * sizes)
    assert len(settled) == 2


def test_what_is_restored_takes_the_hosts_memory_again() -> None:
    draw = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(3000, generator=draw))
    optimizer = OffloadedOptimizer(build_optimizer([parameter], ADAMW), numbers_max=ALIGNMENT)
    parameter.grad = torch.randn(3000, generator=draw)
    optimizer.step()
    there = {key: value.data_ptr() for key, value in optimizer.state[parameter].items()}
    kept = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    optimizer.step()
    optimizer.load([(parameter, kept)])
    found = optimizer.state[parameter]
    assert all(torch.equal(found[key], kept[key]) for key in kept)
    assert found["exp_avg"].data_ptr() == there["exp_avg"]
    kept["step"] += 1
    assert float(found["step"]) == 1


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    """Parameters of the tiny model are cut, too."""
    monkeypatch.setattr(offload.OffloadedOptimizer.__init__, "__kwdefaults__", PIECES)


PIECES = {"numbers_max": 2 * ALIGNMENT, "host": None}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_a_run_goes_on_with_offloaded_states_and_without_to_the_same_chain(
    world, coordinator, dtype
) -> None:
    world = replace(world, settings=replace(world.settings, dtype=dtype))
    offloading = replace(world, settings=replace(world.settings, optimizer_offload=True))
    calm, calls = coordinator(steps_max=5), coordinator(steps_max=5)
    replace(world, folder=world.folder / "calm").run(calm)
    for at, one in ((2, offloading), (4, world)):
        parts = one.parts(calls)
        leaves = Watch(told_seconds=lambda at=at: 60.0 if calls.committed == at else None)
        run_learner(parts, parts.session.start(1, "here"), leaves)
        assert calls.anchors[-1].step == at
    last = offloading.run(calls)
    assert isinstance(last.trainer.optimizer, OffloadedOptimizer)
    assert calls.records == calm.records
    assert not calls.forks


@pytest.mark.usefixtures("small_pieces")
def test_a_critics_states_are_offloaded_with_the_policys(world, coordinator, ppo_settings) -> None:
    world = replace(world, settings=replace(world.settings, algorithm=ppo_settings))
    offloading = replace(world, settings=replace(world.settings, optimizer_offload=True))
    calm, calls = coordinator(steps_max=3), coordinator(steps_max=3)
    replace(world, folder=world.folder / "calm").run(calm)
    parts = offloading.run(calls)
    assert isinstance(parts.trainer.critic.optimizer, OffloadedOptimizer)
    assert calls.records == calm.records
    fresh = offloading.parts(None)
    restore_anchor(calls.anchors[-1], fresh.store, fresh.trainer)
    critic, restored = parts.trainer.critic, fresh.trainer.critic
    for name, master in critic.held.masters.items():
        states = critic.optimizer.state[master]
        found = restored.optimizer.state[restored.held.masters[name]]
        assert all(torch.equal(found[key], states[key]) for key in states)


def sharded_states(model_path, parallel, numbers_max):
    """What an anchor would hold after two steps, and of a third one after the states were saved and loaded."""
    held = Policy(load_model(model_path), torch.float32, parallel)

    def fresh():
        inner = build_optimizer(held.masters.values(), ADAMW)
        return inner if numbers_max is None else OffloadedOptimizer(inner, numbers_max=numbers_max)

    def step(optimizer, seed):
        draw = torch.Generator().manual_seed(seed)
        held.zero_gradients()
        tokens = torch.randint(250, (2, 9), generator=draw)
        held.model(tokens).logits.float().square().mean().backward()
        held.update(optimizer, held.gradient_norm(), max_norm=1.0)

    class Trainer:
        policy, optimizer, critic = held, fresh(), None

    for seed in (1, 2):
        step(Trainer.optimizer, seed)
    saved = {
        name: {key: one.clone() for key, one in group.items()}
        for name, group in whole_groups(state_groups(Trainer)).items()
    }
    Trainer.optimizer = fresh()
    copies = {key: one.clone() for key, one in saved["optimizer"].items()}
    load_optimizer(held, Trainer.optimizer, copies)
    step(Trainer.optimizer, 3)
    last = whole_groups(state_groups(Trainer))
    return {
        (when, *key): value.numpy()
        for when, groups in (("saved", saved), ("last", last))
        for key, value in flat(groups)
    }


def flat(groups):
    return [((name, key), one) for name, group in groups.items() for key, one in group.items()]


@pytest.mark.process
def test_shards_of_two_ranks_are_offloaded_and_gathered_whole(model_path) -> None:
    def work(parallel: Parallel):
        return [sharded_states(model_path, parallel, bound) for bound in (None, ALIGNMENT)]

    for wanted, found in on_two_ranks(work):
        assert set(found) == set(wanted)
        assert any("exp_avg" in key[-1] for key in found)
        assert not [key for key in wanted if (found[key] != wanted[key]).any()]

"""What ranks tell each other is data of a declared type; a stranger's bytes are a named refusal and run nothing."""

from __future__ import annotations

import math
import pickle
import threading
from dataclasses import dataclass

import msgspec
import pytest
import torch
from rank_kit import on_two_ranks

from rollout.errors import RunFailed
from rollout.learner.model import exchange
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.ppo_estimates import Before
from rollout.protocol import messages as m


@dataclass(frozen=True, slots=True)
class Evil:
    """Runs a command where it is unpickled."""

    place: str

    def __reduce__(self):
        return (open, (self.place, "w"))


def test_every_kind_of_value_arrives_bit_by_bit():
    told = {(0, 1): torch.tensor([0.1, -0.0, math.inf, math.nan], dtype=torch.float64)}
    (heard,) = exchange.decode(exchange.encode(told), dict[tuple[int, int], torch.Tensor]).values()
    assert heard.view(torch.int64).equal(told[0, 1].view(torch.int64))
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        for shape in ((), (0,), (3, 2)):
            tensor = torch.ones(shape, dtype=dtype)
            same = exchange.decode(exchange.encode(tensor), torch.Tensor)
            assert (same.dtype, same.shape) == (dtype, tensor.shape)
            assert same.equal(tensor)
    before = Before(
        values=torch.ones(2), old_logprobs=torch.ones(1), reference_logprobs=None, end_value=0.25
    )
    same = exchange.decode(exchange.encode({(1, 2): before}), dict[tuple[int, int], Before])[1, 2]
    assert (same.end_value, same.reference_logprobs) == (0.25, None)
    assert same.values.equal(before.values)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", int),
        (b"\xc1", int),
        (msgspec.msgpack.encode("1"), int),
        (b"\x91" * 100_000, m.Batch),
        (msgspec.msgpack.encode({"step": -1.5}), m.Batch),
        (msgspec.msgpack.encode(["torch.float32", [4], bytes(15)]), torch.Tensor),
        (msgspec.msgpack.encode(["torch.float32", [-1, -4], bytes(16)]), torch.Tensor),
        (msgspec.msgpack.encode(["torch.float32", [1] * 99, bytes(4)]), torch.Tensor),
        (msgspec.msgpack.encode(["torch.float32", [0, 1 << 62], b""]), torch.Tensor),
        (msgspec.msgpack.encode(["object", [1], bytes(8)]), torch.Tensor),
    ],
)
def test_bytes_that_are_no_such_value_are_named(payload, kind):
    with pytest.raises(RunFailed, match=r"was told \d+ bytes that are no"):
        exchange.decode(payload, kind)


def test_a_pickle_is_bytes_and_runs_nothing(tmp_path):
    place = tmp_path / "here"
    with pytest.raises(RunFailed):
        exchange.decode(pickle.dumps(Evil(str(place))), m.Batch)
    assert not place.exists()


def test_what_is_no_data_is_not_told():
    with pytest.raises(RunFailed, match="cannot tell Thread: Thread is no data"):
        exchange.encode(threading.Thread())


def speak(here: Parallel) -> list:
    """What ranks say to each other, where nothing can be pickled (``rank_kit``)."""

    batch = here.on_main(lambda: m.Batch(step=3, waiting="x" * 70_000), m.Batch)
    ranks = here.gather({here.rank: torch.full((here.rank,), 0.1)}, dict[int, torch.Tensor])
    said = []
    for failing in (lambda: 1 / 0, lambda: pickle):
        try:
            here.on_main(failing, int)
        except (RunFailed, ZeroDivisionError) as error:
            said.append(f"{type(error).__name__}: {error}")
    exchange.MESSAGE_BYTES_MAX = 1000
    try:
        here.on_main(lambda: "x" * 1001, str)
    except RunFailed as error:
        said.append(str(error))
    return [batch.step, len(batch.waiting or ""), [len(r[i]) for i, r in enumerate(ranks)], said]


@pytest.mark.process
def test_two_ranks_tell_each_other_everything_without_a_pickle():
    first, second = on_two_ranks(speak, sharded=False)
    assert first[:3] == second[:3] == [3, 70_000, [0, 1]]
    assert first[3][0] == "ZeroDivisionError: division by zero"
    assert (
        second[3][0]
        == "RunFailed: rank 0 of the learner failed: ZeroDivisionError: division by zero"
    )
    assert "module is no data" in first[3][1]
    assert "module is no data" in second[3][1]
    assert all("expected at most 1000" in said[3][2] for said in (first, second))

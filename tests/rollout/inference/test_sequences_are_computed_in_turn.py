"""Orders for vectors and scores share one thread: none waits for another's end, and none pays for another's fault."""

from __future__ import annotations

import json
import threading

import torch
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from rollout.engines.pooled.module import PooledInput
from rollout.inference.embedded_server.orders import OrdersFull
from rollout.inference.embedded_server.settings import EmbeddedSettings
from rollout.inference.pooled_server.computing import (
    ROW_TOKENS_MAX,
    SPREAD_MAX,
    ComputingThread,
    PooledJob,
    cut_rows,
)
from rollout.inference.pooled_server.orders import PooledFacts
from rollout.inference.pooled_server.server import build_pooled_app
from rollout.models.pooled import PooledModel

WAIT_SECONDS = 60


class Gate:
    """A model that computes when it may, and fails on a token of 13."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.met: list[int] = []

    def compute(self, inputs):
        assert self.may.acquire(timeout=WAIT_SECONDS)
        self.met += [one.ids[0] for one in inputs]
        if any(13 in one.ids for one in inputs):
            raise MemoryError
        return torch.tensor([[float(one.ids[0])] for one in inputs])


class Told:
    def __init__(self, *first: int) -> None:
        self.rows = None
        self.heard = threading.Event()
        inputs = [PooledInput(ids=(one,)) for one in first]
        self.job = PooledJob(inputs=inputs, tell=self._tell)

    def _tell(self, rows) -> None:
        self.rows = rows
        self.heard.set()

    def wait(self):
        assert self.heard.wait(WAIT_SECONDS)
        return None if self.rows is None else self.rows[:, 0].tolist()


def begin(gate: Gate, **bounds: int) -> ComputingThread:
    bounds = {"sequences_max": 1, "orders_max": 8, "num_threads": 1, **bounds}
    return ComputingThread(gate, **bounds)


def let(gate: Gate, times: int) -> None:
    for _ in range(times):
        gate.may.release()


def test_rows_come_back_in_their_order_and_faults_stay_with_their_order():
    gate = Gate()
    thread = begin(gate, sequences_max=4)
    let(gate, 100)
    good, bad, next_one = Told(5, 3, 9), Told(13), Told(1)
    thread.submit(bad.job)
    assert bad.wait() is None
    for one in (good, next_one):
        thread.submit(one.job)
    assert good.wait() == [5.0, 3.0, 9.0]
    assert next_one.wait() == [1.0]
    thread.stop()


def test_who_has_left_is_not_computed():
    gate = Gate()
    thread = begin(gate)
    long, after = Told(*range(20, 40)), Told(1)
    thread.submit(long.job)
    let(gate, 1)
    long.job.gone = True
    thread.submit(after.job)
    let(gate, 100)
    assert after.wait() == [1.0]
    thread.stop()
    assert len([one for one in gate.met if one >= 20]) <= 2


def test_a_short_order_ends_before_a_long_one_that_came_first():
    gate = Gate()
    thread = begin(gate, sequences_max=2)
    long, short = Told(*range(20, 60)), Told(1)
    thread.submit(long.job)
    let(gate, 1)
    thread.submit(short.job)
    let(gate, 5)
    assert short.wait() == [1.0]
    assert not long.heard.is_set()
    let(gate, 1000)
    assert long.wait() == [float(one) for one in range(20, 60)]
    thread.stop()


def test_more_than_may_wait_are_refused():
    gate = Gate()
    thread = begin(gate, orders_max=1)
    told = [Told(one) for one in range(8)]
    refused = 0
    for one in told:
        try:
            thread.submit(one.job)
        except OrdersFull:
            refused += 1
    assert refused >= 8 - 3
    thread.stop()
    let(gate, 100)


@given(st.lists(st.integers(1, 40_000), max_size=30))
def test_parts_hold_every_sequence_within_bounds(lengths):
    jobs = [PooledJob(inputs=[PooledInput(ids=(0,) * one)], tell=lambda _: None) for one in lengths]
    parts = cut_rows([(job, 0) for job in jobs])
    assert sorted(len(job.inputs[0].ids) for part in parts for job, _ in part) == sorted(lengths)
    for part in parts:
        sizes = [len(job.inputs[0].ids) for job, _ in part]
        assert len(part) == 1 or max(sizes) * len(part) <= ROW_TOKENS_MAX
        assert max(sizes) <= SPREAD_MAX * min(sizes)


class Spoiled:
    """A head that gives what is no number for a token of 7."""

    def compute(self, inputs):
        return torch.tensor([[float("nan") if 7 in one.ids else 0.5] for one in inputs])


async def test_what_is_no_number_is_an_error_of_its_request_and_the_next_is_answered():
    thread = ComputingThread(Spoiled(), sequences_max=4, orders_max=4, num_threads=1)
    facts = PooledFacts(
        model=PooledModel(task="score", labels=("LABEL_0",), context=8),
        tokenizer=None,
        vocab_size=10,
        hidden_size=4,
    )
    settings = EmbeddedSettings(model="", socket="", name="m", task="score")
    async with TestClient(TestServer(build_pooled_app(settings, facts, thread))) as client:
        bad = await client.post("/classify", json={"input": [[7], [1]]})
        assert bad.status == 500
        assert "not finite" in (await bad.json())["error"]["message"]
        good = await client.post("/classify", json={"input": [[1], [2]]})
        assert [one["probs"] for one in (await good.json())["data"]] == [[0.5], [0.5]]
        for body in (
            b"",
            b"[]",
            b"[" * 50_000,
            b'{"input": NaN}',
            json.dumps({"input": [99]}).encode(),
        ):
            assert (await client.post("/classify", data=body)).status == 400
    thread.stop()

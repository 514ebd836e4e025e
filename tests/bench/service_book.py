"""A training service's book of many calls, written as its own writer does but in one transaction: what readers are measured with."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from rollout.ledger.sqlite.call_book import CallBook
from rollout.service.calls import (
    AdapterAsk,
    CallDatum,
    CallTensor,
    ForwardBackward,
    LossAnswer,
    OptimStep,
    SampleAnswer,
    SampleCall,
    SampledSequence,
    SavedAnswer,
    SaveForSampler,
    StepAnswer,
    digest_fact,
    encode_fact,
)
from rollout.service.registry import (
    ServedBase,
    ServiceModel,
    ServiceSampler,
    ServiceSession,
    Thing,
    base_id,
    sampler_of_call,
)

SEQUENCES, TOKENS = 8, 16
SAMPLES, DRAWN = 2, 4
"""Sampling calls of each sampler, and completions of each."""
EPOCH = 1_750_000_000.0
URI = "rollout://tiny-adder"
INSERT_CALL = "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_THING = "INSERT INTO things (kind, id, owner, body, created_at) VALUES (?, ?, ?, ?, ?)"


def write_book(folder: Path, models: dict[str, int], digest: str = "blake3:" + "0" * 64) -> None:
    """A book in ``folder`` with models of these ids and so many calls each: a step is three calls, of which one saves weights."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "calls.sqlite"
    CallBook(path, {"threads": "1"}).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        base = ServedBase(id=base_id("tiny", digest), owner="", name="tiny", uri=URI, digest=digest)
        session = ServiceSession(id="s", owner="train", about="{}")
        connection.executemany(INSERT_THING, [_thing(base, 0), _thing(session, 0)])
        for model, number in models.items():
            connection.execute(INSERT_THING, _thing(_model(model, digest), 0))
            connection.executemany(INSERT_CALL, _calls(model, number))
            samplers = [sampler_of_call(model, seq) for seq in range(3, number + 1, 3)]
            for at, name in enumerate(samplers):
                sampler = ServiceSampler(
                    id=name, owner="train", session="s", base="tiny", digest=digest
                )
                connection.execute(INSERT_THING, _thing(sampler, 3 * at))
                connection.executemany(INSERT_CALL, _samples(name, at))


def _thing(thing: Thing, at: int) -> tuple:
    return (type(thing).__name__, thing.id, thing.owner, encode_fact(thing), EPOCH + at)


def _model(name: str, digest: str) -> ServiceModel:
    adapter = AdapterAsk(rank=16, seed=1, targets=("Attention", "Mlp"))
    return ServiceModel(
        id=name,
        owner="train",
        session="s",
        base="tiny",
        base_digest=digest,
        adapter=adapter,
        chain=_chain(name, 0),
    )


def _calls(model: str, number: int) -> Iterator[tuple]:
    draw = np.random.default_rng(1)
    for seq in range(1, number + 1):
        step = (seq - 1) // 3 + 1
        if seq % 3 == 1:
            call, answer = _backward(draw, step)
        elif seq % 3 == 2:
            call = OptimStep(learning_rate=1e-4)
            answer = StepAnswer(metrics={"gradient_norm:max": 1 / step, "num_gathered:sum": 8.0})
        else:
            call, answer = SaveForSampler(), SavedAnswer(digest="blake3:" + "1" * 64)
        yield _row(model, seq, call, answer, _chain(model, seq))


def _backward(draw: np.random.Generator, step: int) -> tuple[ForwardBackward, LossAnswer]:
    ids = draw.integers(0, 20, (SEQUENCES, TOKENS))
    weights = np.ones(TOKENS, "<f4").tobytes()
    data = tuple(
        CallDatum(
            tokens=row.astype("<i4").tobytes(),
            inputs={
                "target_tokens": CallTensor("int64", (TOKENS,), row.astype("<i8").tobytes()),
                "weights": CallTensor("float32", (TOKENS,), weights),
            },
        )
        for row in ids
    )
    numbers = draw.random((2, SEQUENCES, TOKENS)).astype("<f4")
    answer = LossAnswer(
        logprobs=tuple(row.tobytes() for row in -numbers[0]),
        losses=tuple(row.tobytes() for row in numbers[1]),
        metrics={"loss:sum": float(numbers[1].sum()) / (1 + step / 1000)},
    )
    return ForwardBackward("cross_entropy", {}, True, data), answer


def _samples(sampler: str, at: int) -> Iterator[tuple]:
    draw = random.Random(at)
    for seq in range(SAMPLES):
        call = SampleCall(
            prompt=tuple(draw.randrange(20) for _ in range(TOKENS)),
            seeds=tuple(range(DRAWN)),
            max_tokens=TOKENS,
            temperature=1.0,
            stop_ids=(0,),
            stop=(),
        )
        answer = SampleAnswer(sequences=tuple(_drawn(draw) for _ in range(DRAWN)))
        yield _row(sampler, seq, call, answer, "")


def _drawn(draw: random.Random) -> SampledSequence:
    ids = np.asarray([draw.randrange(20) for _ in range(TOKENS)], "<i4")
    logprobs = np.asarray([-draw.random() for _ in range(TOKENS)], "<f4")
    return SampledSequence(tokens=ids.tobytes(), logprobs=logprobs.tobytes(), stopped=True)


def _row(line: str, seq: int, call, answer, chain: str) -> tuple:
    encoded, at = encode_fact(call), EPOCH + seq
    digest = digest_fact(encoded)
    return (line, seq, digest, encoded, at, encode_fact(answer), chain, at + 0.5)


def _chain(model: str, seq: int) -> str:
    return digest_fact(f"{model}/{seq}".encode())

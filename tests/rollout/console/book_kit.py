"""Books of a training service that nobody has computed: calls, answers and samplers as its own writer keeps them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tokenizers import Tokenizer, models, pre_tokenizers

from rollout.ledger.sqlite.call_book import CallBook
from rollout.service.calls import (
    AdapterAsk,
    CallDatum,
    ForwardBackward,
    LossAnswer,
    OptimStep,
    RefusedAnswer,
    RefusedCall,
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
    SavedVersion,
    ServedBase,
    ServiceModel,
    ServiceSampler,
    base_id,
    booked,
    sampler_of_call,
    saved_path,
)

DIGEST = "blake3:" + "d" * 64
MODEL = "5e55:train:0"
ADAPTER = AdapterAsk(rank=4, seed=7, targets=("Attention", "Mlp"))


@dataclass(kw_only=True)
class Book:
    """A service's open book with one model, whose next call is ``seq`` + 1."""

    folder: Path
    calls: CallBook
    model: ServiceModel
    seq: int = 0
    samplers: list[str] = field(default_factory=list)

    def ask(self, call: msgspec.Struct, seq: int | None = None) -> int:
        """A call that is not answered yet."""
        self.seq = self.seq + 1 if seq is None else seq
        encoded = encode_fact(call)
        self.calls.accept(self.model.id, self.seq, digest_fact(encoded), encoded)
        return self.seq

    def answer(self, seq: int, answer: msgspec.Struct) -> None:
        chain = digest_fact(f"{self.model.id}/{seq}".encode())
        self.calls.answer(self.model.id, seq, encode_fact(answer), chain)

    def make(self, call: msgspec.Struct, answer: msgspec.Struct) -> int:
        seq = self.ask(call)
        self.answer(seq, answer)
        return seq

    def step(self, loss: float = 1.0, tokens: Sequence[int] = (1, 2, 3)) -> None:
        """A call of one sequence and a step on it."""
        datum = CallDatum(tokens=array("i", tokens).tobytes(), inputs={})
        numbers = array("f", [loss / len(tokens)] * len(tokens)).tobytes()
        loss_answer = LossAnswer(logprobs=(numbers,), losses=(numbers,), metrics={"loss:sum": loss})
        self.make(ForwardBackward("cross_entropy", {}, True, (datum,)), loss_answer)
        self.make(OptimStep(learning_rate=0.25), StepAnswer(metrics={"gradient_norm:max": 0.5}))

    def refuse(self, why: str) -> None:
        self.make(RefusedCall(why), RefusedAnswer(why))

    def save(self, name: str | None = None) -> str:
        """Save weights to sample from; the id of a sampler of them."""
        seq = self.make(SaveForSampler(name=name), SavedAnswer(digest=DIGEST, name=name))
        owner, base = self.model.owner, self.model.base
        facts = {"owner": owner, "base": base, "digest": DIGEST}
        if name is None:
            path, sampler = None, sampler_of_call(self.model.id, seq)
        else:
            path, sampler = saved_path(self.model.id, name), f"5e55:sample:{seq}"
            self.calls.put(booked(SavedVersion(id=path, model=self.model.id, **facts)))
        thing = ServiceSampler(id=sampler, session="5e55", path=path, **facts)
        self.calls.put(booked(thing))
        self.samplers.append(sampler)
        return sampler

    def sample(
        self, sampler: str, seq: int, drawn: Sequence[Sequence[int]], prompt: Sequence[int] = (1, 2)
    ) -> None:
        """A sampling call whose completions have these tokens."""
        self.ask_sample(sampler, seq, len(drawn), prompt)
        sequences = tuple(
            SampledSequence(
                tokens=array("i", tokens).tobytes(),
                logprobs=array("f", [-0.5] * len(tokens)).tobytes(),
                stopped=True,
            )
            for tokens in drawn
        )
        self.calls.answer(sampler, seq, encode_fact(SampleAnswer(sequences=sequences)), "")

    def ask_sample(
        self, sampler: str, seq: int, number: int, prompt: Sequence[int] = (1, 2), stop: str = ""
    ) -> None:
        """A sampling call that is not answered yet."""
        call = SampleCall(
            prompt=tuple(prompt),
            seeds=tuple(range(number)),
            max_tokens=9,
            temperature=1.0,
            stop_ids=(),
            stop=(stop,) if stop else (),
        )
        encoded = encode_fact(call)
        self.calls.accept(sampler, seq, digest_fact(encoded), encoded)


def open_book(
    folder: Path,
    *,
    model: str = MODEL,
    owner: str = "ann",
    adapter: AdapterAsk | None = ADAPTER,
    base: str = "tiny",
    uri: str = "file:///nowhere",
    identity: str = "test",
) -> Book:
    """A book with a model; it is open to write until its ``calls`` are closed."""
    calls = CallBook(folder / "calls.sqlite", {"machine": identity})
    calls.put(
        booked(ServedBase(id=base_id(base, DIGEST), owner="", name=base, uri=uri, digest=DIGEST))
    )
    thing = ServiceModel(
        id=model,
        owner=owner,
        session="5e55",
        base=base,
        base_digest=DIGEST,
        adapter=adapter,
        chain=digest_fact(model.encode()),
    )
    calls.put(booked(thing))
    return Book(folder=folder, calls=calls, model=thing)


def write_tokenizer(folder: Path, words: Sequence[str]) -> str:
    """A model's folder with a tokenizer of these words, by their order; its URI."""
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({}))
    return folder.as_uri()

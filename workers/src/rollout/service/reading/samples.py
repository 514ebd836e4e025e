"""What was sampled from a model: the calls of the samplers that were made of what it was saved as."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import SampleAnswer, SampledSequence, SavedAnswer
from rollout.service.reading.decoding import ReadSample, decode_thing, kind_of, read_sampled
from rollout.service.reading.steps import read_calls
from rollout.service.reading.words import plain_fields
from rollout.service.registry import SavedVersion, ServiceModel, ServiceSampler

OWN_SAMPLER = ":sampler:"
"""Between a model's id and the call that made a sampler without a name."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSampler:
    """A sampler of a model's weights; ``step``: after so many steps they were saved."""

    sampler: ServiceSampler
    step: int


def samplers_of(book: CallBookReader, model: ServiceModel) -> Iterator[ModelSampler]:
    """The samplers of a model, oldest first. Raises LedgerError."""
    steps, named = _find_saves(book, model)
    for found in book.things(ServiceSampler.__name__):
        sampler = decode_thing(found)
        assert isinstance(sampler, ServiceSampler)
        seq = _saved_by(book, model, sampler, named)
        if seq is not None:
            yield ModelSampler(sampler=sampler, step=bisect_right(steps, seq))


def read_samples(
    book: CallBookReader, model: ServiceModel
) -> Iterator[tuple[ModelSampler, ReadSample]]:
    """The sampling calls, sampler by sampler, those without an answer too. Raises LedgerError."""
    for one in samplers_of(book, model):
        for found in book.each(one.sampler.id):
            yield one, read_sampled(found)


def sample_rows(
    book: CallBookReader, model: ServiceModel, decode: Decode | None
) -> Iterator[list[dict[str, Any]]]:
    """Of each answered sampling call its completions; texts are None without ``decode``. Raises LedgerError."""
    for one, sample in read_samples(book, model):
        if isinstance(sample.answer, SampleAnswer):
            yield [
                _row(one, sample, sequence, place, decode)
                for place, sequence in enumerate(sample.answer.sequences)
            ]


def _row(
    one: ModelSampler,
    sample: ReadSample,
    sequence: SampledSequence,
    place: int,
    decode: Decode | None,
) -> dict[str, Any]:
    prompt, tokens = list(sample.call.prompt), np.frombuffer(sequence.tokens, "<i4").tolist()
    return {
        "id": f"{sample.sampler}#{sample.seq}:{place}",
        "sampler": sample.sampler,
        "weights": one.sampler.digest,
        "path": one.sampler.path,
        "step": one.step,
        "call": sample.seq,
        "sample": place,
        "prompt": None if decode is None else decode(prompt),
        "completion": None if decode is None else decode(tokens),
        "ending": "stop" if sequence.stopped else "length",
        "num_tokens": len(tokens),
        "prompt_ids": prompt,
        "token_ids": tokens,
        "actor_logprobs": np.frombuffer(sequence.logprobs, "<f4").tolist(),
        "seed": sample.call.seeds[place],
        "answered_at": sample.answered_at,
        "settings": plain_fields(sample.call),
    }


def _find_saves(book: CallBookReader, model: ServiceModel) -> tuple[array[int], dict[str, int]]:
    """The calls that were steps, eight bytes each, and of each saved name its call (whose weights are a file)."""
    steps, named = array("q"), dict[str, int]()
    for head in book.heads(model.id):
        kind, answer = kind_of(head.call), kind_of(head.answer or b"")
        if kind == "optim_step" and answer == "step":
            steps.append(head.seq)
        elif kind == "save_weights_for_sampler" and answer == "saved":
            one = next(read_calls(book, model.id, head.seq - 1), None)
            if one is not None and isinstance(one.answer, SavedAnswer) and one.answer.name:
                named[one.answer.name] = one.seq
    return steps, named


def _saved_by(
    book: CallBookReader, model: ServiceModel, sampler: ServiceSampler, named: dict[str, int]
) -> int | None:
    """The call that saved a sampler's weights; None where they are not this model's."""
    head, _, seq = sampler.id.partition(OWN_SAMPLER)
    if head == model.id and seq.isdecimal():
        return int(seq)
    if sampler.path is None:
        return None
    found = book.thing(SavedVersion.__name__, sampler.path)
    saved = None if found is None else decode_thing(found)
    if not isinstance(saved, SavedVersion) or saved.model != model.id:
        return None
    return named.get(sampler.path.rpartition("/")[2])

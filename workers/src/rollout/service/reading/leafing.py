"""Leafing through what was sampled from a model: the newest weights first, so many completions at a time.

A leaf costs what it shows, and a look at each saved version between: nobody goes through the whole book.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import ModelCall, SampleAnswer, SaveForSampler
from rollout.service.reading.decoding import ReadSample, decode_thing, read_booked, read_sampled
from rollout.service.reading.folding import ModelFold
from rollout.service.registry import ServiceModel, ServiceSampler, sampler_of_call, saved_path

ROWS = 25
"""Completions with which a leaf is full."""
SAVES_MAX = 1000
"""Saved versions that one leaf looks at."""
NAMED_MAX = 1000
"""Samplers of weights with a name that are known of a model: the newest."""
OWN_SAMPLER = ":sampler:"
FIRST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlace:
    """Where a leaf begins: saves before call ``before``; of the first of them behind call ``after`` of its ``sampler``-th sampler."""

    before: int
    sampler: int = 0
    after: int = FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafCall:
    """A sampling call on the weights that call ``save`` saved after ``step`` steps."""

    save: int
    step: int
    sample: ReadSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Sampling calls, and where the next leaf begins; None: there is nothing more."""

    calls: tuple[LeafCall, ...]
    next: LeafPlace | None


def read_leaf(
    book: CallBookReader, model: ServiceModel, fold: ModelFold, start: LeafPlace, down_to: int = 0
) -> Leaf:
    """The leaf that begins at ``start``, of saves behind call ``down_to``. Raises LedgerError."""
    named = named_samplers(book, model)
    found: list[LeafCall] = []
    rows = 0
    for looked, save in enumerate(fold.saves_before(start.before)):
        if save <= down_to:
            break
        if looked == SAVES_MAX:
            return Leaf(calls=tuple(found), next=LeafPlace(before=save + 1))
        for place, sample in _calls_of(book, model, named, save, start):
            if rows >= ROWS:
                return Leaf(calls=tuple(found), next=place)
            found.append(LeafCall(save=save, step=fold.step_of(save), sample=sample))
            rows += num_rows(sample)
    return Leaf(calls=tuple(found), next=None)


def num_rows(sample: ReadSample) -> int:
    """Completions of a call; one that has none is a row, too."""
    return len(sample.answer.sequences) if isinstance(sample.answer, SampleAnswer) else 1


def samplers_of_save(
    book: CallBookReader, model: ServiceModel, named: Mapping[str, list[str]], save: int
) -> list[str]:
    """The ids of the samplers of what a call saved. Raises LedgerError."""
    if not named:
        return [sampler_of_call(model.id, save)]
    found = book.find_dated(model.id, save)
    call: ModelCall | None = None if found is None else read_booked(found).call
    if not isinstance(call, SaveForSampler) or call.name is None:
        return [sampler_of_call(model.id, save)]
    return named.get(saved_path(model.id, call.name), [])


def named_samplers(book: CallBookReader, model: ServiceModel) -> dict[str, list[str]]:
    """By the path of saved weights the samplers of it, of a model; the newest NAMED_MAX. Raises LedgerError."""
    part = saved_path(model.id, "").encode()
    samplers: dict[str, list[str]] = {}
    things = book.with_part(ServiceSampler.__name__, part, OWN_SAMPLER, NAMED_MAX)
    for sampler in map(decode_thing, reversed(things)):
        if isinstance(sampler, ServiceSampler) and sampler.path is not None:
            samplers.setdefault(sampler.path, []).append(sampler.id)
    return samplers


def _calls_of(
    book: CallBookReader,
    model: ServiceModel,
    named: Mapping[str, list[str]],
    save: int,
    start: LeafPlace,
) -> Iterator[tuple[LeafPlace, ReadSample]]:
    """Each call on what was saved, and where a leaf would begin that begins with it."""
    begun = save == start.before - 1
    for number, sampler in enumerate(samplers_of_save(book, model, named, save)):
        if begun and number < start.sampler:
            continue
        after = start.after if begun and number == start.sampler else FIRST
        for found in book.each(sampler, after):
            yield LeafPlace(before=save + 1, sampler=number, after=after), read_sampled(found)
            after = found.booked.seq

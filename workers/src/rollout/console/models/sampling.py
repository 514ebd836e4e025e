"""What was sampled from a model: a leaf of it, the newest weights first, and one completion token by token."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rollout.codec import Columns
from rollout.console.asking import number_of, word_of
from rollout.console.models.calls import PLACES_MAX, numbers
from rollout.console.models.counting import ModelCounts
from rollout.console.models.overview import read_head
from rollout.console.models.places import COUNTS, answer_of_model
from rollout.console.models.texts import BaseTexts, find_texts
from rollout.console.render import render
from rollout.console.views.tokens import HEATS, ROWS, cut_window
from rollout.errors import SpecError
from rollout.service.calls import RefusedAnswer, SampleAnswer, SampledSequence
from rollout.service.reading.decoding import ReadSample, decode_thing, read_sampled
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.leafing import (
    FIRST,
    LeafCall,
    LeafPlace,
    named_samplers,
    read_leaf,
    samplers_of_save,
)
from rollout.service.reading.words import plain_fields
from rollout.service.registry import ServiceSampler
from rollout.types import VersionSpan

SHOWN_OF_CALL = 25
"""Completions of one call that a leaf shows; the page of one leads to the others."""
TEXT_MAX = 20_000
OTHERS_MAX = 200

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLine:
    """One completion, or what a call came to instead (``said``)."""

    call: LeafCall
    place: int
    prompt: str
    text: str = ""
    num_tokens: int | None = None
    logprob: float | None = None
    ending: str = ""
    said: str = ""


def list_lines(call: LeafCall, texts: BaseTexts) -> Iterator[SampleLine]:
    """The completions of a call, or why it has none."""
    sample = call.sample
    prompt = texts.ending(sample.call.prompt)
    if not isinstance(sample.answer, SampleAnswer):
        answer = sample.answer
        said = (
            f"refused: {answer.error}" if isinstance(answer, RefusedAnswer) else "not answered yet"
        )
        yield SampleLine(call=call, place=0, prompt=prompt, said=said)
        return
    for place, sequence in enumerate(sample.answer.sequences[:SHOWN_OF_CALL]):
        tokens, logprobs = numbers("i", sequence.tokens), numbers("f", sequence.logprobs)
        yield SampleLine(
            call=call,
            place=place,
            prompt=prompt,
            text=texts.beginning(tokens),
            num_tokens=len(tokens),
            logprob=math.fsum(logprobs) / len(logprobs) if logprobs else None,
            ending=_ending(sequence),
        )


def _ending(sequence: SampledSequence) -> str:
    return "stop" if sequence.stopped else "length"


@routes.get("/models/{model}/samples")
async def list_samples(request: web.Request) -> web.Response:
    """A leaf of what was sampled."""
    step, counts = number_of(request, "step"), request.app[COUNTS]
    place = LeafPlace(
        before=number_of(request, "before", most=PLACES_MAX) or 0,
        sampler=number_of(request, "sampler") or 0,
        after=_after(request),
    )
    return await answer_of_model(request, lambda opened: make_list(opened, counts, place, step))


def _after(request: web.Request) -> int:
    found = number_of(request, "after", most=PLACES_MAX)
    return FIRST if found is None else found


def make_list(opened: OpenedModel, counts: ModelCounts, place: LeafPlace, step: int | None) -> str:
    """The leaf. Raises LedgerError."""
    texts = find_texts(opened)
    with counts.look(opened) as (standing, fold):
        low, high = (0, fold.done + 1) if step is None else fold.save_ends(step)
        if not place.before:
            place = LeafPlace(before=high)
        leaf = read_leaf(opened.book, opened.model, fold, place, low)
        head, num_saves = read_head(opened, standing, fold), fold.num_saves
    lines = [line for call in leaf.calls for line in list_lines(call, texts)]
    return render(
        "model_samples.html",
        head=head,
        lines=lines,
        leaf=leaf,
        step=step,
        is_first=place.before == high,
        num_saves=num_saves,
        texts=texts,
        shown_of_call=SHOWN_OF_CALL,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAddress:
    """A completion: the call that saved its weights, its sampler's place among those of them, its call and its place there."""

    save: int
    sampler: int
    call: int
    place: int


@routes.get("/models/{model}/sample")
async def show_sample(request: web.Request) -> web.Response:
    """One completion."""
    given = {name: number_of(request, name, most=PLACES_MAX) for name in ("save", "call", "place")}
    sampler, start = word_of(request, "sampler"), number_of(request, "from") or 0
    save, call, place = given.values()
    if save is None or call is None or place is None or not sampler:
        raise SpecError(
            "an address of a sample has save=..., sampler=..., call=... and place=...: choose one of a list"
        )
    counts = request.app[COUNTS]

    def make(opened: OpenedModel) -> str:
        sample = find_sample(opened, save, sampler, call)
        with counts.look(opened) as (_, fold):
            step = fold.step_of(save) if save <= fold.done else None
        return make_page(opened, LeafCall(save=save, step=step or 0, sample=sample), place, start)

    return await answer_of_model(request, make)


def find_sample(opened: OpenedModel, save: int, sampler: str, call: int) -> ReadSample:
    """A sampling call on what a call of this model saved. Raises SpecError, LedgerError."""
    named = named_samplers(opened.book, opened.model)
    known = samplers_of_save(opened.book, opened.model, named, save)
    found = opened.book.find_dated(sampler, call) if sampler in known else None
    if found is None:
        raise SpecError(
            f"save={save}, sampler={sampler}, call={call}: nothing was sampled there from {opened.model.id}"
        )
    return read_sampled(found)


def make_page(opened: OpenedModel, call: LeafCall, place: int, start: int) -> str:
    """The page of a completion. Raises SpecError for one that is not there, LedgerError."""
    sample, texts = call.sample, find_texts(opened)
    sequences = sample.answer.sequences if isinstance(sample.answer, SampleAnswer) else ()
    if place >= len(sequences):
        raise SpecError(f"place={place}: this call has {len(sequences)} completions, from 0 on")
    sequence = sequences[place]
    columns = _columns(sample, sequence, call.step)
    thing = opened.book.thing(ServiceSampler.__name__, sample.sampler)
    sampler = None if thing is None else decode_thing(thing)
    return render(
        "model_sample.html",
        id=opened.model.id,
        call=call,
        place=place,
        places=range(min(OTHERS_MAX, len(sequences))),
        num_places=len(sequences),
        ending=_ending(sequence),
        logprob=math.fsum(columns.actor_logprobs),
        num_tokens=len(columns.token_ids),
        prompt=texts.text(columns.prompt_ids[-TEXT_MAX:]),
        text=texts.text(columns.token_ids[:TEXT_MAX]),
        seed=sample.call.seeds[place] if place < len(sample.call.seeds) else None,
        settings=_settings(sample),
        weights=sampler if isinstance(sampler, ServiceSampler) else None,
        found=cut_window(columns, start, texts.tokenizer, ROWS),
        window=ROWS,
        heats=HEATS,
        texts=texts,
    )


def _settings(sample: ReadSample) -> list[tuple[str, Any]]:
    """What was asked for, as far as it was."""
    told = [(name, one) for name, one in plain_fields(sample.call).items() if one is not None]
    stop = ", ".join(map(repr, sample.call.stop))
    return [*told, ("stop", stop)] if stop else told


def _columns(sample: ReadSample, sequence: SampledSequence, step: int) -> Columns:
    """As a run's sample is: everything that was drawn is of the policy."""
    tokens = array("q", numbers("i", sequence.tokens))
    logprobs = array("d", numbers("f", sequence.logprobs)[: len(tokens)])
    logprobs.extend([float("nan")] * (len(tokens) - len(logprobs)))
    span = VersionSpan(start=0, end=len(tokens), lineage=0, step=step)
    return Columns(
        prompt_ids=array("q", sample.call.prompt),
        token_ids=tokens,
        actor_logprobs=logprobs,
        loss_mask=bytes([1]) * len(tokens),
        spans=(span,),
    )

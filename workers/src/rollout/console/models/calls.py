"""The calls on a model: a page of them, the newest first, and one with what it was made on and what came of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from rollout.console.asking import number_of
from rollout.console.models.counting import ModelCounts
from rollout.console.models.overview import read_head
from rollout.console.models.places import COUNTS, answer_of_model
from rollout.console.models.texts import BaseTexts, find_texts
from rollout.console.render import render
from rollout.errors import LedgerError, SpecError
from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import ForwardBackward, LossAnswer, RefusedAnswer
from rollout.service.reading.decoding import ReadCall, read_booked
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.words import describe_answer, describe_call, kind_name, plain_fields

PAGE_ROWS = 25
READ_BYTES_MAX = 32 << 20
"""A page ends behind the call with which so many bytes were read."""
SEQUENCES_MAX = 20
PLACES_MAX = 1 << 62

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """One call in short; ``said``: why it cannot be read, then the rest is empty."""

    seq: int
    kind: str = ""
    asked: str = ""
    answered: str = ""
    refused: bool = False
    received_at: float | None = None
    answered_at: float | None = None
    chain: str | None = None
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLine:
    """One sequence of a call: its beginning, its tokens, and the sum of its losses where there are some."""

    text: str
    num_tokens: int
    loss: float | None


def read_lines(book: CallBookReader, model_id: str, before: int) -> list[CallRow]:
    """The calls before call ``before``, the last first; one is in memory at a time. Raises LedgerError."""
    found: list[CallRow] = []
    read = 0
    for one in book.each_back(model_id, before):
        try:
            found.append(_line(read_booked(one)))
        except LedgerError as error:
            found.append(CallRow(seq=one.booked.seq, said=str(error)))
        read += len(one.booked.call) + len(one.booked.answer or b"")
        if len(found) == PAGE_ROWS or read > READ_BYTES_MAX:
            break
    return found


def _line(one: ReadCall) -> CallRow:
    return CallRow(
        seq=one.seq,
        kind=kind_name(one.call),
        asked=describe_call(one.call),
        answered=describe_answer(one.answer),
        refused=isinstance(one.answer, RefusedAnswer),
        received_at=one.received_at,
        answered_at=one.answered_at,
        chain=one.chain,
    )


@routes.get("/models/{model}/calls")
async def list_calls(request: web.Request) -> web.Response:
    """A page of the calls."""
    before, counts = number_of(request, "before", most=PLACES_MAX), request.app[COUNTS]
    return await answer_of_model(request, lambda opened: make_list(opened, counts, before))


def make_list(opened: OpenedModel, counts: ModelCounts, before: int | None) -> str:
    """The page. Raises LedgerError."""
    last = opened.book.last(opened.model.id) or 0
    lines = read_lines(opened.book, opened.model.id, last + 1 if before is None else before)
    with counts.look(opened, 0.0) as (standing, fold):
        head = read_head(opened, standing, fold)
    newer = None if before is None or before > last else min(last + 1, before + PAGE_ROWS)
    older = lines[-1].seq if lines and lines[-1].seq > 1 else None
    return render("model_calls.html", head=head, lines=lines, newer=newer, older=older)


@routes.get(r"/models/{model}/calls/{call:\d{1,18}}")
async def show_call(request: web.Request) -> web.Response:
    """One call."""
    seq = int(request.match_info["call"])
    return await answer_of_model(request, lambda opened: make_call_page(opened, seq))


def make_call_page(opened: OpenedModel, seq: int) -> str:
    """The page. Raises SpecError for a call that is not there, LedgerError."""
    book, model = opened.book, opened.model
    found = book.find_dated(model.id, seq)
    if found is None:
        raise SpecError(f"call {seq}: {model.id} has calls 1 to {book.last(model.id) or 0}")
    one = read_booked(found)
    texts = find_texts(opened)
    is_data = isinstance(one.call, ForwardBackward)
    return render(
        "model_call.html",
        id=model.id,
        one=one,
        line=_line(one),
        asked=_settings(one),
        answered=_metrics(one.answer),
        sequences=read_sequences(one, texts) if is_data else None,
        num_sequences=len(one.call.data) if isinstance(one.call, ForwardBackward) else 0,
        texts=texts,
        chain_before=model.chain if seq == 1 else book.chain_at(model.id, seq - 1),
        last=book.last(model.id),
    )


def _settings(one: ReadCall) -> list[tuple[str, Any]]:
    """What was asked for, beside data."""
    more = one.call.config if isinstance(one.call, ForwardBackward) else {}
    return [*plain_fields(one.call).items(), *sorted(more.items())]


def _metrics(answer: msgspec.Struct | None) -> list[tuple[str, Any]]:
    """What came of it, beside logprobs."""
    if answer is None:
        return []
    return [*plain_fields(answer).items(), *sorted(getattr(answer, "metrics", {}).items())]


def read_sequences(one: ReadCall, texts: BaseTexts) -> list[SequenceLine]:
    """The first sequences of a call."""
    assert isinstance(one.call, ForwardBackward)
    losses: Sequence[bytes] = one.answer.losses if isinstance(one.answer, LossAnswer) else ()
    return [
        SequenceLine(
            text=texts.beginning(numbers("i", datum.tokens)),
            num_tokens=len(datum.tokens) // 4,
            loss=sum(numbers("f", losses[at])) if at < len(losses) else None,
        )
        for at, datum in enumerate(one.call.data[:SEQUENCES_MAX])
    ]


def numbers(kind: str, data: bytes) -> array:
    """int32 (``i``) or float32 (``f``) numbers of a book, little-endian as the machines that write it are."""
    found = array(kind)
    found.frombytes(data[: len(data) // 4 * 4])
    return found

"""From the bytes of a book to what they say, and refusals of bytes that say nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_book import BookedCall, BookedThing
from rollout.ledger.sqlite.call_reader import DatedCall
from rollout.service.calls import (
    ModelAnswer,
    ModelCall,
    SampleCall,
    SampleOutcome,
    digest_fact,
)
from rollout.service.registry import AnyThing, read_thing

T = TypeVar("T")
_CALLS = msgspec.msgpack.Decoder(ModelCall)
_ANSWERS = msgspec.msgpack.Decoder(ModelAnswer)
_SAMPLES = msgspec.msgpack.Decoder(SampleCall)
_OUTCOMES = msgspec.msgpack.Decoder(SampleOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCall:
    """A call on a model with what it came to; ``answer`` and ``chain`` None: not answered yet. Seconds since 1970."""

    seq: int
    digest: str
    call: ModelCall
    answer: ModelAnswer | None
    chain: str | None
    received_at: float
    answered_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSample:
    """A sampling call with what it came to; ``answer`` None: not answered yet."""

    sampler: str
    seq: int
    call: SampleCall
    answer: SampleOutcome | None
    received_at: float
    answered_at: float | None


def read_booked(found: DatedCall) -> ReadCall:
    """A model's call. Raises LedgerError for damaged bytes, and for a kind that this version does not know."""
    booked = found.booked
    _check(booked)
    answer = None if booked.answer is None else _decode(booked, booked.answer, _ANSWERS)
    return ReadCall(
        seq=booked.seq,
        digest=booked.digest,
        call=_decode(booked, booked.call, _CALLS),
        answer=answer,
        chain=booked.chain,
        received_at=found.received_at,
        answered_at=found.answered_at,
    )


def read_sampled(found: DatedCall) -> ReadSample:
    """A sampler's call. Raises LedgerError, as ``read_booked``."""
    booked = found.booked
    _check(booked)
    answer = None if booked.answer is None else _decode(booked, booked.answer, _OUTCOMES)
    return ReadSample(
        sampler=booked.line,
        seq=booked.seq,
        call=_decode(booked, booked.call, _SAMPLES),
        answer=answer,
        received_at=found.received_at,
        answered_at=found.answered_at,
    )


def decode_thing(found: BookedThing) -> AnyThing:
    """A thing of the book. Raises LedgerError."""
    try:
        return read_thing(found)
    except msgspec.MsgspecError as error:
        raise LedgerError(
            f"{found.kind} {found.id} of the book cannot be read ({error}): it is damaged, or a newer rollout wrote it"
        ) from error


def kind_of(head: bytes) -> str:
    """The kind that the first bytes of a call or an answer name; empty where they name none."""
    if len(head) < 7 or head[0] >> 4 != 8 or head[1:6] != b"\xa4type" or head[6] >> 5 != 5:
        return ""
    return head[7 : 7 + (head[6] & 31)].decode("ascii", "replace")


def _check(booked: BookedCall) -> None:
    if digest_fact(booked.call) != booked.digest:
        raise LedgerError(
            f"call {booked.seq} of {booked.line} is damaged: its bytes are not of {booked.digest}; restore the book"
            " from a copy"
        )


def _decode(booked: BookedCall, encoded: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        return decoder.decode(encoded)
    except msgspec.MsgspecError as error:
        raise LedgerError(
            f"call {booked.seq} of {booked.line} cannot be read ({error}): the book is damaged, or a newer rollout"
            " wrote it; restore it from a copy, or use that version"
        ) from error

"""Making a call on a model, and making all of a book's calls again: one function for both.

    answer, chain = make_call(model, keeper, chain, seq, ...)

What a call comes to depends on the model's earlier calls only. Weights to sample from are written before the call is
answered, under their digest, so that a repeat finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_book import BookedCall
from rollout.service.calls import (
    ForwardBackward,
    ModelAnswer,
    ModelCall,
    OptimStep,
    RefusedAnswer,
    RefusedCall,
    SavedAnswer,
    SaveForSampler,
    digest_fact,
    encode_fact,
)
from rollout.service.chain import next_chain
from rollout.service.refusals import CallRefused
from rollout.service.training.trained import TrainedModel

Keep = Callable[[dict[str, torch.Tensor]], str]
"""Keeps weights and returns their digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall:
    """What a call came to: the answer as it is kept, and the chain behind it."""

    answer: bytes
    chain: str


def make_call(
    model: TrainedModel, keep: Keep, chain: str, place: tuple[int, str, ModelCall]
) -> MadeCall:
    """Compute one call; ``place`` is its sequence id, its digest and the call. Raises StoreError."""
    seq, digest, call = place
    try:
        answer = _answer(model, keep, call)
    except CallRefused as refusal:
        answer = RefusedAnswer(error=str(refusal))
    encoded = encode_fact(answer)
    link = next_chain(chain, seq, call=digest, answer=digest_fact(encoded), state=model.digest())
    return MadeCall(answer=encoded, chain=link)


def replay_call(model: TrainedModel, keep: Keep, chain: str, booked: BookedCall) -> str:
    """Make an answered call again and return the chain behind it. Raises LedgerError where it is another."""
    call = read_call(booked)
    made = make_call(model, keep, chain, (booked.seq, booked.digest, call))
    if (made.chain, made.answer) != (booked.chain, booked.answer):
        what = "another answer" if made.answer != booked.answer else "the same answer"
        raise LedgerError(
            f"call {booked.seq} of {booked.line} came to chain {booked.chain}, and made again comes to {made.chain}"
            f" with {what}: the book, the base model or the numerics are not what they were"
        )
    return made.chain


def read_call(booked: BookedCall) -> ModelCall:
    """A call of the book. Raises LedgerError for bytes that are not what their digest says."""
    if digest_fact(booked.call) != booked.digest:
        raise LedgerError(
            f"call {booked.seq} of {booked.line} is damaged: its bytes are not of {booked.digest}"
        )
    return msgspec.msgpack.decode(booked.call, type=ModelCall)  # pyrefly: ignore[bad-argument-type] - msgspec takes unions


def _answer(model: TrainedModel, keep: Keep, call: ModelCall) -> ModelAnswer:
    if isinstance(call, ForwardBackward):
        return model.forward_backward(call)
    if isinstance(call, OptimStep):
        return model.optim_step(call)
    if isinstance(call, SaveForSampler):
        model.claim_name(call)
        return SavedAnswer(digest=keep(model.weights()), name=call.name)
    assert isinstance(call, RefusedCall)
    return RefusedAnswer(error=call.why)

"""Making a call on a model, the first time and again: one function for both.

What a call comes to depends on the model's earlier calls only. What a call saves is written before it is answered, under its
digest, so that a repeat finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_book import BookedCall
from rollout.service.calls import (
    ForwardBackward,
    LoadedAnswer,
    LoadState,
    ModelAnswer,
    ModelCall,
    OptimStep,
    RefusedAnswer,
    RefusedCall,
    SavedAnswer,
    SaveForSampler,
    SaveState,
    digest_fact,
    encode_fact,
)
from rollout.service.chain import next_chain
from rollout.service.kept.tensors import Keeper
from rollout.service.refusals import CallRefused
from rollout.service.training.trained import TrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall:
    """What a call came to: the answer as it is kept, and the chain behind it."""

    answer: bytes
    chain: str


def make_call(model: TrainedModel, keeper: Keeper, chain: str, booked: BookedCall) -> MadeCall:
    """Compute one call of the book, whatever it holds of its answer. Raises StoreError, LedgerError."""
    call = read_call(booked)
    try:
        answer = _answer(model, keeper, call)
    except CallRefused as refusal:
        answer = RefusedAnswer(error=str(refusal))
    encoded = encode_fact(answer)
    return MadeCall(
        answer=encoded, chain=link_call(model, chain, booked.seq, booked.digest, encoded)
    )


def link_call(model: TrainedModel, chain: str, seq: int, digest: str, answer: bytes) -> str:
    """The chain behind a call with this answer, where the model is as it is now."""
    return next_chain(chain, seq, call=digest, answer=digest_fact(answer), state=model.digest())


def make_again(model: TrainedModel, keeper: Keeper, chain: str, booked: BookedCall) -> str:
    """Make an answered call again and return the chain behind it. Raises LedgerError where it is another."""
    made = make_call(model, keeper, chain, booked)
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


def _answer(model: TrainedModel, keeper: Keeper, call: ModelCall) -> ModelAnswer:
    if isinstance(call, ForwardBackward):
        return model.forward_backward(call)
    if isinstance(call, OptimStep):
        return model.optim_step(call)
    if isinstance(call, SaveForSampler):
        if call.name is not None:
            model.claim_name("sampler", call.name)
        return SavedAnswer(digest=keeper.weights.keep(model.weights()), name=call.name)
    if isinstance(call, SaveState):
        model.claim_name("state", call.name)
        digest = keeper.states.keep(model.state())
        return SavedAnswer(digest=digest, name=call.name, state=True)
    if isinstance(call, LoadState):
        model.load(keeper.states.read(call.digest), optimizer=call.optimizer)
        return LoadedAnswer(call.digest)
    assert isinstance(call, RefusedCall)
    return RefusedAnswer(error=call.why)

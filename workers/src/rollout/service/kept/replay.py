"""A model out of the book: from its newest anchor, where that fits the chain, else from its first call.

An anchor is not trusted: with the state that it holds the chain of its call must come out, and the calls behind it are made
again. Whatever the book says of a call is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rollout.errors import LedgerError
from rollout.ledger.sqlite.call_book import BookedCall
from rollout.service.kept.making import link_call, make_again
from rollout.service.kept.tensors import Keeper, ModelAnchor
from rollout.service.line import CallLine
from rollout.service.registry import ServiceModel
from rollout.service.training.bases import TrainingBase
from rollout.service.training.trained import TrainedModel

log = logging.getLogger(__name__)

READ_AT_ONCE = 64


class BookedCalls(Protocol):
    """The calls of a book."""

    def find(self, line: str, seq: int) -> BookedCall | None:
        """One call."""
        ...

    def calls(self, line: str, *, after: int = 0, at_most: int = 1) -> list[BookedCall]:
        """The next calls of a line, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What models come out of. The book may be one that is only read."""

    book: BookedCalls
    keeper: Keeper
    bases: Mapping[str, TrainingBase]

    def build(self, thing: ServiceModel) -> TrainedModel:
        """A model before its first call. Raises LedgerError, StoreError."""
        base = self.bases.get(thing.base)
        if base is None or base.digest != thing.base_digest:
            raise LedgerError(
                f"model {thing.id} is over the base {thing.base} ({thing.base_digest}), which is not served: start"
                " with the same --train"
            )
        model = TrainedModel(base, thing.adapter)
        if thing.start is not None:
            state = self.keeper.states.read(thing.start.state)
            model.restore(state, optimizer=thing.start.optimizer, gradient=False)
        return model

    def run(
        self, thing: ServiceModel, stopped: Callable[[], bool]
    ) -> tuple[TrainedModel, CallLine] | None:
        """A model after its last answered call, and its line; None where it was ``stopped``. Raises LedgerError, StoreError."""
        line = CallLine(model_id=thing.id, chain=thing.chain)
        model = self.from_anchor(thing, line) or self.build(thing)
        began = line.done
        while ready := self._answered(line):
            for one in ready:
                if stopped():
                    return None
                line.finish(make_again(model, self.keeper, line.chain, one))
        log.info(
            "model=%s calls=%d again=%d chain=%s",
            thing.id,
            line.done,
            line.done - began,
            line.chain,
        )
        return model, line

    def anchor(self, model: TrainedModel, line: CallLine) -> None:
        """Keep a model as it is. Raises StoreError."""
        self.keeper.anchors.write(
            line.model_id,
            ModelAnchor(seq=line.done, names=model.names, tensors=model.state()),
        )

    def _answered(self, line: CallLine) -> list[BookedCall]:
        """The next calls that were answered. Raises LedgerError where one is missing before them."""
        calls = self.book.calls(line.model_id, after=line.done, at_most=READ_AT_ONCE)
        ready = [one for one in calls if one.answer is not None]
        for place, one in enumerate(ready, start=line.done + 1):
            if one.seq != place:
                raise LedgerError(
                    f"call {place} of {line.model_id} is not in the book, though call {one.seq} is answered:"
                    " restore the book from a copy"
                )
        return ready

    def _chain_before(self, thing: ServiceModel, seq: int) -> str | None:
        if seq == 1:
            return thing.chain
        before = self.book.find(thing.id, seq - 1)
        return None if before is None else before.chain

    def from_anchor(self, thing: ServiceModel, line: CallLine) -> TrainedModel | None:
        """The model of an anchor whose call it fits; ``line`` then stands there."""
        anchor = self.keeper.anchors.read(thing.id)
        if anchor is None or anchor.seq < 1:
            return None
        booked = self.book.find(thing.id, anchor.seq)
        chain = self._chain_before(thing, anchor.seq)
        if booked is None or booked.answer is None or booked.chain is None or chain is None:
            return None
        model = self.build(thing)
        try:
            model.restore(anchor.tensors, names=anchor.names)
        except (ValueError, RuntimeError, KeyError):
            return None  # of another kind of model, or not whole
        if link_call(model, chain, anchor.seq, booked.digest, booked.answer) != booked.chain:
            log.warning(
                "model=%s: its anchor does not fit call %d, all calls are made again",
                thing.id,
                anchor.seq,
            )
            return None
        line.done, line.chain = anchor.seq, booked.chain
        return model

"""How calls come in: held against what their key may, written into the book with what they cost, and held until they are answered.

A call that is known costs nothing again. One for which a key has no quota takes its place in its model's order as a refused
call, since clients count it; a sampling call, which has no order, is refused where it is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from rollout.errors import LedgerError
from rollout.inference.gateway.keys import ApiKey
from rollout.ledger.sqlite.call_book import BookedCall, CallBook, Charge
from rollout.service.calls import (
    ModelAnswer,
    ModelCall,
    RefusedAnswer,
    RefusedCall,
    SampleCall,
    SampleOutcome,
    digest_fact,
    encode_fact,
)
from rollout.service.kept.making import read_call
from rollout.service.line import CallLine
from rollout.service.refusals import CallRefused, QuotaSpent
from rollout.service.tenants.costs import tokens_at_most, tokens_used
from rollout.service.tenants.use import CallLoad, CallTicket, TenantUse

Write = Callable[[Callable[[], Any]], Awaitable[Any]]


class SavedSizes(Protocol):
    """What saves come to, in bytes."""

    def to_save(self, model_id: str, call: ModelCall) -> int:
        """The most that a call of a model would save."""
        ...

    def saved(self, owner: str) -> int:
        """What an owner has saved."""
        ...


class CallIntake:
    """Owns the tickets of calls that wait. ``write`` does what it is given on the book's thread."""

    def __init__(self, book: CallBook, write: Write, use: TenantUse, sizes: SavedSizes) -> None:
        self.use = use
        self._book, self._write, self._sizes = book, write, sizes
        self._tickets: dict[tuple[str, int], CallTicket] = {}
        self._taking: dict[str, asyncio.Lock] = {}
        self.held_back: dict[str, tuple[int, CallRefused]] = {}
        """By model the call that was last told to come again, and why."""

    async def open(self) -> None:
        """Read what was spent, before anything is resumed."""
        self.use.begin(await self._write(self._book.spent))

    async def take(self, line: CallLine, seq: int, call: ModelCall, key: ApiKey) -> None:
        """Take a call of a model in. Raises CallRefused.

        One call of a model at a time: which of two comes first decides what the other is.
        """
        async with self._taking.setdefault(line.model_id, asyncio.Lock()):
            line.check_place(seq)
            if seq <= line.done or seq in line.waiting:
                await self._take_again(line.model_id, seq, call)
                return
            try:
                await self._take_new(line, seq, call, key)
            except CallRefused as refusal:
                self.held_back[line.model_id] = (seq, refusal)
                raise
            self.held_back.pop(line.model_id, None)

    async def take_sample(self, sampler_id: str, seq: int, call: SampleCall, key: ApiKey) -> bool:
        """Take a sampling call in; False where it is known. Raises CallRefused."""
        encoded = encode_fact(call)
        load = CallLoad(tokens=tokens_at_most(call), size_bytes=len(encoded), exact=False)
        try:
            ticket = self.use.admit(key, load, 0, time.monotonic())
        except CallRefused:
            if await self._write(partial(self._book.find, sampler_id, seq)) is None:
                raise
            await self._accept(sampler_id, seq, encoded)
            return False
        return await self._accept_with(ticket, (sampler_id, seq), encoded)

    def resume(self, found: BookedCall, owner: str, *, samples: bool) -> None:
        """Hold a call that the book has without an answer; of one that is damaged its bytes, until it is told as that."""
        load = CallLoad(size_bytes=len(found.call))
        with suppress(LedgerError, msgspec.MsgspecError):
            load = self._load_again(found, samples=samples)
        self._tickets[found.line, found.seq] = self.use.resume(owner, load)

    def _load_again(self, found: BookedCall, *, samples: bool) -> CallLoad:
        if samples:
            call: ModelCall | SampleCall = msgspec.msgpack.decode(found.call, type=SampleCall)
            return CallLoad(tokens=tokens_at_most(call), size_bytes=len(found.call), exact=False)
        call = read_call(found)
        return CallLoad(
            tokens=tokens_at_most(call),
            size_bytes=len(found.call),
            saved_bytes=self._sizes.to_save(found.line, call),
        )

    def used(
        self,
        place: tuple[str, int],
        answer: ModelAnswer | SampleOutcome,
        call: SampleCall | None = None,
    ) -> Charge:
        """What an answer changes in what was charged for its call; the book is to have it with the answer."""
        ticket = self._tickets[place]
        used = ticket.load.tokens if call is None else tokens_used(call, answer)
        if isinstance(answer, RefusedAnswer):
            used = 0
        return Charge(owner=ticket.owner, units=used - ticket.load.tokens)

    def settle(self, place: tuple[str, int], charge: Charge) -> None:
        """The book has the answer."""
        ticket = self._tickets.pop(place)
        self.use.settle(ticket, ticket.load.tokens + charge.units)

    async def _take_new(self, line: CallLine, seq: int, call: ModelCall, key: ApiKey) -> None:
        encoded = encode_fact(call)
        ahead = any(place not in line.waiting for place in range(line.done + 1, seq))
        load = CallLoad(
            tokens=tokens_at_most(call),
            size_bytes=len(encoded),
            saved_bytes=self._sizes.to_save(line.model_id, call),
            ahead=ahead,
        )
        saved = self._sizes.saved(key.name) if load.saved_bytes and key.training_bytes else 0
        try:
            ticket = self.use.admit(key, load, saved, time.monotonic())
        except QuotaSpent as refusal:
            call = RefusedCall(why=str(refusal), of=digest_fact(encoded))
            encoded = encode_fact(call)
            load = CallLoad(size_bytes=len(encoded), ahead=ahead)
            ticket = self.use.admit(key, load, 0, time.monotonic())
        await self._accept_with(ticket, (line.model_id, seq), encoded)
        line.add(seq)

    async def _take_again(self, model_id: str, seq: int, call: ModelCall) -> None:
        encoded = encode_fact(call)
        digest = digest_fact(encoded)
        try:
            await self._accept(model_id, seq, encoded)
        except CallRefused:
            found = await self._write(partial(self._book.find, model_id, seq))
            known = read_call(found)
            if not isinstance(known, RefusedCall) or known.of != digest:
                raise

    async def _accept_with(
        self, ticket: CallTicket, place: tuple[str, int], encoded: bytes
    ) -> bool:
        """Whether the call is new; if it is not, nothing is held for it."""
        is_new = False
        try:
            charge = Charge(owner=ticket.owner, units=ticket.load.tokens)
            is_new = await self._accept(*place, encoded, charge)
        finally:
            if is_new:
                self._tickets[place] = ticket
            else:
                self.use.withdraw(ticket)
        return is_new

    async def _accept(
        self, line: str, seq: int, encoded: bytes, charge: Charge | None = None
    ) -> bool:
        accept = partial(self._book.accept, line, seq, digest_fact(encoded), encoded, charge)
        said = await self._write(accept)
        if said == "other":
            raise CallRefused(
                f"seq_id {seq} of {line} was another call; a repeat must be the same, a new call has the next number"
            )
        return said == "new"

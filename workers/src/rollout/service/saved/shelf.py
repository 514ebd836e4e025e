"""Saved weights and states: published, given a time, deleted; their bytes go when nothing needs them any more.

A change is a fact in the book before anything follows from it. Of what is gone the bytes are collected, and stay as long as

- another name has the same digest,
- a model began from the state or a call loaded it, since these are made again from the book, or
- a sampler of the weights is in a session that has not finished, or has calls without an answer.

What a replay writes down again is collected again. Nothing else than what was deleted or has expired is ever collected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from rollout.errors import StoreError
from rollout.service.calls import LoadState, ModelCall, SavedAnswer, SaveForSampler, SaveState
from rollout.service.kept.tensors import Keeper, SavedTensors
from rollout.service.registry import (
    AnySaved,
    FinishedSession,
    Registry,
    SavedChange,
    SavedState,
    SavedVersion,
    ServiceModel,
    ServiceSampler,
    Thing,
    sampler_of_call,
    saved_path,
    state_path,
)

log = logging.getLogger(__name__)

LOAD_BYTES_MAX = 256
"""A booked call that loads a state has fewer."""
LOAD_MARK = b"\xaaload_state"
SAVE_BYTES_MAX, SAVE_MARK = 512, b"save_"
"""Of a booked call that saves something: names are short."""
LOOK_SECONDS = 60.0
"""At most so long until expiries are looked at again: a clock may have been set."""


SaveCall = SaveForSampler | SaveState


class BookedLoads(Protocol):
    """Where calls that load states are found."""

    def short_calls(self, marks: bytes, bytes_max: int) -> Iterator[bytes]:
        """Calls with these marks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfSeams:
    """What a shelf does through others: ``add`` a fact, the digests that booked calls ``loaded``, samplers with calls ``waiting``."""

    add: Callable[[Thing], Awaitable[None]]
    loaded: Callable[[], Awaitable[set[str]]]
    waiting: Callable[[], Iterable[str]]


class SavedShelf:
    """Owns what becomes of saved things. Its coroutines and methods belong to the desk's loop."""

    def __init__(self, registry: Registry, keeper: Keeper, seams: ShelfSeams) -> None:
        self._registry = registry
        self._keeper = keeper
        self._seams = seams
        self._changing = asyncio.Lock()
        self._news = asyncio.Event()
        self._loaded: set[str] = set()
        self._knows_loads = False
        self._still, self._due, self._taken = 0, False, True

    async def add_saved(
        self, place: tuple[str, int], saved: SavedAnswer, call: SaveCall | None
    ) -> None:
        """What the call in ``place`` saved, known before it is answered; done again after a kill it changes nothing."""
        model = self._registry.get(ServiceModel, place[0])
        assert model is not None
        facts = {"owner": model.owner, "base": model.base, "digest": saved.digest}
        if saved.name is None:
            name = sampler_of_call(*place)
            await self._seams.add(ServiceSampler(id=name, session=model.session, **facts))
            return
        expires = _expiry_of(call, time.time())
        if saved.state:
            path = state_path(model.id, saved.name)
            state = SavedState(
                id=path, model=model.id, adapter=model.adapter, expires_at=expires, **facts
            )
            await self._seams.add(state)
        else:
            path = saved_path(model.id, saved.name)
            await self._seams.add(
                SavedVersion(id=path, model=model.id, expires_at=expires, **facts)
            )
        self._news.set()

    async def delete(self, path: str, owner: str) -> None:
        """Something of the owner's is there no more. Again: nothing. Raises CallRefused."""
        async with self._changing:
            saved = self._registry.require_own(path, owner, gone=True)
            if not self._registry.standing(saved).gone:
                await self._note(saved, "deleted")
        await self.collect()

    async def publish(self, path: str, owner: str, *, public: bool) -> None:
        """Every key of the service may read something of the owner's, or the owner alone again. Raises CallRefused."""
        async with self._changing:
            saved = self._registry.require_own(path, owner)
            if self._registry.standing(saved).public != public:
                await self._note(saved, "published" if public else "withdrawn")

    async def set_expiry(self, path: str, owner: str, expires_at: float | None) -> None:
        """Something of the owner's expires then (seconds since 1970), or never. Raises CallRefused."""
        async with self._changing:
            saved = self._registry.require_own(path, owner)
            if self._registry.standing(saved).expires_at != expires_at:
                await self._note(saved, "expires", expires_at)
        self._news.set()

    async def tidy(self, now: float) -> None:
        """What has its time behind it is gone, and bytes that nobody needs go."""
        async with self._changing:
            for saved, expires_at in self._expiring():
                if expires_at <= now:
                    await self._note(saved, "expired")
        await self.collect()

    async def tidy_forever(self) -> None:
        """Each expiry when it is due."""
        while True:
            due = min((one for _, one in self._expiring()), default=None)
            wait = LOOK_SECONDS if due is None else min(max(due - time.time(), 0.0), LOOK_SECONDS)
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()
            await self.tidy(time.time())

    @contextmanager
    def still(self, *, needed: bool = True) -> Iterator[None]:
        """While something is made of what is saved no bytes are taken away: that it needs them is no fact yet."""
        self._still += needed
        try:
            yield
        finally:
            self._still -= needed
            if self._due and not self._still:
                self._take_all()

    def note_load(self, digest: str) -> None:
        """A call loads this state, and loads it again when it is made again."""
        self._loaded.add(digest)

    def has_weights(self, sampler: ServiceSampler) -> bool:
        """Whether a sampler's weights are there; those of a session that goes on are, unless somebody else took them away."""
        finished = self._registry.get(FinishedSession, sampler.session) is not None
        return not finished or self._keeper.weights.path(sampler.digest).exists()

    def size(self, saved: AnySaved) -> int | None:
        """Bytes on the disk, which several names of the same tensors share; None where they are not there."""
        kept = self._keeper.states if isinstance(saved, SavedState) else self._keeper.weights
        return kept.size(saved.digest)

    async def collect(self) -> None:
        """Take away the bytes of what is gone and needed by nothing. Raises StoreError where they cannot be removed."""
        if not self._knows_loads and any(map(self._is_gone, self._registry.all(SavedState))):
            self._loaded |= await self._seams.loaded()
            self._knows_loads = True
        self._take_all()
        if self._taken:
            self._taken = False
            for kept in (self._keeper.weights, self._keeper.states):
                await asyncio.to_thread(kept.empty)

    def _take_all(self) -> None:
        """Decided and done in one turn of the loop, so that no fact comes in between."""
        self._due = self._still > 0
        if not self._due:
            self._take(SavedVersion, self._keeper.weights, self._needed_weights)
            self._take(SavedState, self._keeper.states, self._needed_states)

    def _take(
        self, kind: type[AnySaved], kept: SavedTensors, needed: Callable[[], set[str]]
    ) -> None:
        things = self._registry.all(kind)
        gone = {one.digest for one in things if self._is_gone(one)}
        if not gone:
            return
        named = {one.digest for one in things if not self._is_gone(one)}
        for digest in sorted((gone - named - needed()) & kept.digests()):
            try:
                kept.take_away(digest)
            except StoreError as error:
                log.warning("kind=%s not collected: %s", kind.__name__, error)
                continue
            log.info("collected kind=%s digest=%s", kind.__name__, digest)
            self._taken = True
            self._news.set()

    def _is_gone(self, saved: AnySaved) -> bool:
        return bool(self._registry.standing(saved).gone)

    def _needed_weights(self) -> set[str]:
        waiting = set(self._seams.waiting())
        return {
            one.digest
            for one in self._registry.all(ServiceSampler)
            if one.id in waiting or self._registry.get(FinishedSession, one.session) is None
        }

    def _needed_states(self) -> set[str]:
        models = self._registry.all(ServiceModel)
        return self._loaded | {one.start.state for one in models if one.start is not None}

    def _expiring(self) -> list[tuple[AnySaved, float]]:
        found = [*self._registry.all(SavedVersion), *self._registry.all(SavedState)]
        standings = ((one, self._registry.standing(one)) for one in found)
        return [
            (one, told.expires_at)
            for one, told in standings
            if not told.gone and told.expires_at is not None
        ]

    async def _note(
        self,
        saved: AnySaved,
        change: Literal["deleted", "expired", "published", "withdrawn", "expires"],
        expires_at: float | None = None,
    ) -> None:
        number = self._registry.standing(saved).changes
        await self._seams.add(
            SavedChange(
                id=f"{saved.id}#{number}",
                owner=saved.owner,
                path=saved.id,
                change=change,
                expires_at=expires_at,
            )
        )


def find_save(encoded: bytes) -> SaveCall | None:
    """The booked call, where it saves something."""
    if len(encoded) > SAVE_BYTES_MAX or SAVE_MARK not in encoded:
        return None
    call = msgspec.msgpack.decode(encoded, type=ModelCall)  # pyrefly: ignore[bad-argument-type] - msgspec takes unions
    return call if isinstance(call, SaveForSampler | SaveState) else None


def _expiry_of(call: SaveCall | None, now: float) -> float | None:
    """When what a call saves expires; None: never."""
    if call is None or call.ttl_seconds is msgspec.UNSET:
        return None
    return now + call.ttl_seconds


def find_loaded(book: BookedLoads) -> Iterator[str]:
    """The digests of the states that booked calls load, answered or not. Raises LedgerError."""
    for encoded in book.short_calls(LOAD_MARK, LOAD_BYTES_MAX):
        call = msgspec.msgpack.decode(encoded, type=ModelCall)  # pyrefly: ignore[bad-argument-type] - msgspec takes unions
        if isinstance(call, LoadState):
            yield call.digest

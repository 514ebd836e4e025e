"""An episode with memory, in a plugin's process: its code waits where it reads, until the run has answered.

Author's code runs away from the loop that answers calls: plain functions in threads, coroutines in a loop of their own,
which a read holds up for as long as the run takes to answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any

from rollout.environments.memory import EpisodeMemory
from rollout.errors import InfrastructureError, MemoryRefused
from rollout.memory import check_key, decode_vector, encode_vector
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.memory import FOUND_MAX, heard_hits, told_writes
from rollout.plugins.sidecar.wire import told_turn
from rollout.seams import Env, Memory, MemoryHit
from rollout.turns import Action, Ending, State

ANSWER_SECONDS_MAX = 60.0
"""For the run to answer a read, which has the place of the call that reads: who takes longer is gone."""
GONE = "nobody waits for this episode any more"


class AskedMemory:
    """The memory of one episode (``seams.Memory``), from whatever thread: what it does not know itself is asked."""

    def __init__(self, ask: Callable[[contract.MemoryRead], None]) -> None:
        self._ask = ask
        self._own = EpisodeMemory()
        self._untold: set[str] = set()
        self._changing, self._reading = threading.Lock(), threading.Lock()
        self._answer: Future[contract.MemoryFound] | None = None
        self._is_closed = False

    def get(self, key: str) -> Any | None:
        """See the seam."""
        if self._own.written(key) is not None:
            return self._own.get(key)
        try:
            check_key(key)
        except MemoryRefused:
            return None  # nobody can have written it
        hits = self._read(contract.MemoryRead(key=key))
        return hits[0].value if hits else None

    def put(self, key: str, value: Any, vector: Sequence[float] | None = None) -> None:
        """See the seam."""
        with self._changing:
            self._own.put(key, value, vector)
            self._untold.add(key)

    def search(self, vector: Sequence[float], k: int = 8) -> tuple[MemoryHit, ...]:
        """See the seam."""
        numbers = decode_vector(encode_vector(vector))
        if k < 1:
            raise MemoryRefused(f"search for {k} entries: expected 1 or more")
        asked = contract.MemorySearch(vector=numbers, k=min(k, FOUND_MAX))
        return self._read(contract.MemoryRead(search=asked))

    def tell_writes(self) -> list[contract.MemoryWrite]:
        """What was written since this was asked last, by key."""
        with self._changing:
            keys, self._untold = sorted(self._untold), set()
            return told_writes(one for key in keys if (one := self._own.written(key)) is not None)

    def answer(self, found: contract.MemoryFound) -> None:
        """What the read that waits has found. Raises InfrastructureError where none does."""
        waiting, self._answer = self._answer, None
        if waiting is None or waiting.done():
            raise InfrastructureError("nothing of this episode waits for what was found in memory")
        waiting.set_result(found)

    def finish(self) -> None:
        """Nothing is written any more."""
        self._own.finish()

    def close(self) -> None:
        """Nobody answers any more: what waits, and what reads from now on, is told so."""
        self._is_closed = True
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(InfrastructureError(GONE))

    def _read(self, read: contract.MemoryRead) -> tuple[MemoryHit, ...]:
        """One at a time: threads of one episode wait for each other."""
        with self._reading:
            waiting: Future[contract.MemoryFound] = Future()
            self._answer = waiting
            if self._is_closed:
                raise InfrastructureError(GONE)
            self._ask(read)
            try:
                return heard_hits(waiting.result(ANSWER_SECONDS_MAX))
            except TimeoutError as error:
                raise InfrastructureError(
                    f"the run did not answer a read of memory within {ANSWER_SECONDS_MAX:g} s"
                ) from error


class RememberingEpisode:
    """One episode of an environment with memory; its methods are called from one event loop, and answer turns.

    Each raises what the author's code does.
    """

    def __init__(self, build: Callable[[Memory], Env]) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[contract.MemoryRead | asyncio.Future[Any]] = asyncio.Queue()
        self._memory = AskedMemory(self._hear)
        self._env = build(self._memory)
        self._playing: asyncio.Future[Any] | None = None

    async def start(self) -> contract.Turn:
        """The first state, or what it reads before."""
        return await self._play(self._env.start())

    async def step(self, action: Action) -> contract.Turn:
        """The answer to a reply, or what it reads before."""
        return await self._play(self._env.step(action))

    async def go_on(self, found: Sequence[contract.MemoryFound]) -> contract.Turn:
        """The answer, or what it reads next. Raises InfrastructureError where nothing was read."""
        if len(found) != 1:
            raise InfrastructureError(f"{len(found)} reads were answered, one was made")
        self._memory.answer(found[0])
        return await self._next()

    async def close(self) -> None:
        """The environment's own; what waits in it for memory ends."""
        self._memory.close()
        await asyncio.wrap_future(_submit(self._env.close()))

    def _hear(self, read: contract.MemoryRead) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, read)

    async def _play(self, call: Coroutine[Any, Any, State | Ending]) -> contract.Turn:
        if self._playing is not None and not self._playing.done():
            call.close()
            raise InfrastructureError("the episode still answers what it was asked before")
        self._playing = asyncio.wrap_future(_submit(call))
        self._playing.add_done_callback(self._end)
        return await self._next()

    def _end(self, playing: asyncio.Future[Any]) -> None:
        """A call is over. What it raised is told to whoever asks for it, and to nobody where the episode was closed."""
        if not playing.cancelled():
            playing.exception()
        self._events.put_nowait(playing)

    async def _next(self) -> contract.Turn:
        assert self._playing is not None
        try:
            event = await self._events.get()
            while isinstance(event, asyncio.Future) and event is not self._playing:
                event = await self._events.get()  # of a call that was given up
        except asyncio.CancelledError:
            self._playing.cancel()
            raise
        if isinstance(event, contract.MemoryRead):
            reads = contract.MemoryReads(reads=[event])
            return contract.Turn(reads=reads, writes=self._memory.tell_writes())
        if event.cancelled():
            raise InfrastructureError("the call that is gone on with was given up")
        said = event.result()
        turn = told_turn(said)
        turn.writes.extend(self._memory.tell_writes())
        if isinstance(said, Ending):
            self._memory.finish()
        return turn


def _submit(call: Coroutine[Any, Any, Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(call, _authors_loop())


@cache
def _authors_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="author", daemon=True).start()
    return loop

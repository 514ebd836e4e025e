"""The desk: takes calls in, has them computed in their order, and tells whoever waits.

One thread computes models, one writes the book; samplers have their engine's. A call is in the book before it is
acknowledged and its answer before it is told, so that a process that is killed anywhere goes on where its book ends: answered
calls are made again and must come to the same chain, the others are made for the first time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from rollout.common.machine_memory import usable_memory
from rollout.errors import LedgerError, StoreError
from rollout.inference.gateway.keys import ApiKey
from rollout.learner.model.numerics import apply_numerics
from rollout.ledger.sqlite.call_book import BookedCall, CallBook
from rollout.service.calls import (
    ModelAnswer,
    ModelCall,
    SampleAnswer,
    SampleCall,
    SavedAnswer,
    encode_fact,
)
from rollout.service.kept.making import MadeCall, make_call
from rollout.service.kept.memory import ModelMemory
from rollout.service.kept.replay import Replay
from rollout.service.kept.tensors import Keeper
from rollout.service.line import CallLine
from rollout.service.refusals import CallRefused
from rollout.service.registry import (
    Registry,
    ServiceModel,
    ServiceSampler,
    Thing,
    booked,
    read_thing,
)
from rollout.service.sampling import SamplerPool, SamplerWeights
from rollout.service.saved.shelf import SaveCall, SavedShelf, ShelfSeams, find_loaded, find_save
from rollout.service.settings import MODELS_MAX
from rollout.service.tenants.intake import CallIntake
from rollout.service.tenants.room import QUEUE_BOUNDS, RoomBounds
from rollout.service.tenants.sizes import KeptSizes
from rollout.service.tenants.use import TenantUse, check_models
from rollout.service.tenants.waiting import Waiters, until
from rollout.service.tenants.waits import QueueWait, tell_missing, tell_turn
from rollout.service.training.bases import TrainingBase
from rollout.service.training.scoring import PromptScorer, add_scores, wants_scores
from rollout.service.turns import Turns

log = logging.getLogger(__name__)

MODELS_IN_MEMORY = 64
"""Models in memory, unless the service is told otherwise; the others are on the disk until a call needs them."""

T = TypeVar("T")


class TrainingDesk:
    """Owns models, lines and samplers. Its coroutines belong to one loop; ``open`` first, ``close`` at the end."""

    def __init__(
        self,
        book: CallBook,
        bases: Mapping[str, TrainingBase],
        keeper: Keeper,
        threads: int,
        *,
        models_max: int = MODELS_MAX,
        models_in_memory: int = MODELS_IN_MEMORY,
        bytes_in_memory: int | None = None,
        queue: RoomBounds = QUEUE_BOUNDS,
    ) -> None:
        self.bases = bases
        self.registry = Registry()
        self.use = TenantUse(queue)
        self.sizes = KeptSizes(registry=self.registry, keeper=keeper, bases=bases)
        self._intake = CallIntake(book, self._write, self.use, self.sizes)
        self._book = book
        self._keeper = keeper
        self._replay = Replay(book=book, keeper=keeper, bases=bases)
        self._lines: dict[str, CallLine] = {}
        self._models_max = models_max
        self._memory = ModelMemory(
            self._replay,
            self._lines,
            at_most=models_in_memory,
            bytes_max=usable_memory() // 2 if bytes_in_memory is None else bytes_in_memory,
        )
        self._samples: dict[str, deque[int]] = {}
        self._sampler_faults: dict[str, str] = {}
        self._turns, self._sampler_turns = Turns(), Turns()
        self._waiters = Waiters()
        self._base_digests: dict[str, str] = {}
        self._wake, self._wake_sampler = asyncio.Event(), asyncio.Event()
        self._pool, self._scorer = SamplerPool(threads), PromptScorer()
        numerics = partial(apply_numerics, threads=threads, exact=True)
        self._computing = ThreadPoolExecutor(1, "service-models", initializer=numerics)
        self._writing = ThreadPoolExecutor(1, "service-book")
        self._creating = asyncio.Lock()
        seams = ShelfSeams(add=self.add, loaded=self._loaded_states, waiting=lambda: self._samples)
        self.shelf = SavedShelf(self.registry, keeper, seams)
        self._busy, self._sampling, self._closing = "", "", False

    async def open(self) -> None:
        """Read the book and make its answered calls again. Raises LedgerError where one comes to another chain."""
        for found in await self._write(self._book.things):
            self.registry.add(read_thing(found))
        await self._intake.open()
        for model in self.registry.all(ServiceModel):
            await self._compute(partial(self._load, model))
        for line, seq in await self._write(self._book.unanswered):
            await self._take_up(line, seq)
        await self.shelf.tidy(time.time())

    async def close(self) -> None:
        """Let the call that is computed end, keep every model as it is, and free everything; idempotent."""
        if self._closing:
            return
        self._closing = True
        if len(self._memory):
            await self._compute(partial(self._memory.anchor_all, self._busy))
        await asyncio.to_thread(self._computing.shutdown, wait=True, cancel_futures=True)
        await self._pool.close()
        await asyncio.to_thread(self._writing.shutdown, wait=True)

    def line(self, model_id: str) -> CallLine:
        """Where a model stands."""
        return self._lines[model_id]

    def fault(self, line: str) -> str:
        """Why calls of a model or a sampler are not made any more in this process; empty: they are."""
        known = self._lines.get(line)
        return self._sampler_faults.get(line, "") if known is None else known.broken

    def wait_of(self, name: str) -> QueueWait:
        """What a call of a model or a sampler waits for."""
        line = self._lines.get(name)
        if line is not None and line.missing is not None:
            return tell_missing(line.missing, self._intake.held_back.get(name))
        kind = ServiceSampler if line is None else ServiceModel
        waiting, current = self._ready(), self._busy
        if line is None:
            waiting, current = list(self._samples), self._sampling
        owners = {one: self._owner(kind, one) for one in waiting}
        return tell_turn(self._owner(kind, name), owners.get(current), owners.values())

    async def add(self, thing: Thing) -> None:
        """Put a thing into the book, and then know it; one that is known stays as it is."""
        await self._write(partial(self._book.put, booked(thing)))
        self.registry.add(thing)

    async def create_model(self, thing: ServiceModel, key: ApiKey) -> None:
        """Make a model. Raises CallRefused for one too many, and for another of the same id."""
        async with self._creating:
            await self._create(thing, key)

    async def _create(self, thing: ServiceModel, key: ApiKey) -> None:
        known = self.registry.get(ServiceModel, thing.id)
        if known is not None:
            if known != thing:
                raise CallRefused(
                    f"model {thing.id} was created otherwise; another model has another model_seq_id"
                )
            return
        owned = [one for one in self.registry.all(ServiceModel) if one.owner == key.name]
        check_models(key, len(owned))
        if len(self._lines) >= self._models_max:
            raise CallRefused(
                f"this service has {self._models_max} models, the most there may be; go on with one of them, raise"
                f" --max-models ({MODELS_MAX} at most), or begin another service with --folder",
                422,
            )
        model = await self._compute(partial(self._replay.build, thing))
        await self.add(thing)
        self._lines[thing.id] = CallLine(model_id=thing.id, chain=thing.chain)
        await self._compute(partial(self._memory.put, thing.id, model, self._busy))

    async def submit(self, model_id: str, seq: int, call: ModelCall, key: ApiKey) -> None:
        """Take a call in. Raises CallRefused for a place that is taken by another, or that none can take."""
        await self._intake.take(self._lines[model_id], seq, call, key)
        self._wake.set()

    async def submit_sample(self, sampler_id: str, seq: int, call: SampleCall, key: ApiKey) -> None:
        """Take a sampling call in; its places need not be taken in order. Raises CallRefused."""
        is_new = await self._intake.take_sample(sampler_id, seq, call, key)
        if is_new and not self.fault(sampler_id):
            self._samples.setdefault(sampler_id, deque()).append(seq)
            self._wake_sampler.set()

    async def find(self, line: str, seq: int) -> BookedCall | None:
        """A call as the book has it."""
        return await self._write(partial(self._book.find, line, seq))

    async def wait(self, line: str, seq: int, seconds: float) -> BookedCall | None:
        """A call when it is answered, or as it stands after ``seconds``, without its bytes; None where there is none.

        What waits in its queue is not looked for in the book: who asks in a loop keeps nobody from writing there.
        """
        find = partial(self._book.find, line, seq, whole=False)
        with self._waiters.waiting(line, seq) as event:
            if not self._is_queued(line, seq):
                found = await self._write(find)
                if found is None or found.answer is not None or self.fault(line):
                    return found
            await until(event, seconds)
            return await self._write(find)

    def _is_queued(self, line: str, seq: int) -> bool:
        known = self._lines.get(line)
        queue = self._samples.get(line, ()) if known is None else known.waiting
        return seq in queue and not self.fault(line)

    async def times(self, kind: type[Thing]) -> dict[str, float]:
        """When each thing of a kind was made, by its id."""
        return await self._write(partial(self._book.times, kind.__name__))

    async def last_call(self, model_id: str) -> float | None:
        """When a model's newest call came."""
        return await self._write(partial(self._book.last_received, model_id))

    async def compute_forever(self) -> None:
        """Make calls on models, one at a time; tenants in turn, then models of a tenant, by the seconds they have had."""
        while True:
            place = self._turns.choose(
                (self._owner(ServiceModel, name), name) for name in self._ready()
            )
            if place is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            began = time.perf_counter()
            await self._make(self._lines[place[1]])
            self._turns.charge(place, time.perf_counter() - began)

    async def sample_forever(self) -> None:
        """Answer sampling calls: tenants in turn, then samplers of a tenant; of a sampler first come, first served."""
        while True:
            place = self._sampler_turns.choose(
                (self._owner(ServiceSampler, name), name) for name in self._samples
            )
            if place is None:
                self._wake_sampler.clear()
                await self._wake_sampler.wait()
                continue
            name, began = place[1], time.perf_counter()
            self._sampling = name
            try:
                await self._sample(name, self._samples[name][0])
                self._samples[name].popleft()
            except Exception as error:  # of this sampler alone: others go on
                log.exception("sampler=%s could not make a call", name)
                self._stop_sampler(name, error)
            if not self._samples[name]:
                del self._samples[name]
            self._sampler_turns.charge(place, time.perf_counter() - began)

    def _stop_sampler(self, name: str, error: Exception) -> None:
        """Not the caller's mistake: calls of a sampler stay in the book without an answer, and who asks is told why."""
        self._sampler_faults[name] = _fault(self._samples[name][0], error)
        self._samples[name].clear()
        self._waiters.tell_all(name)

    def _ready(self) -> list[str]:
        return [name for name, line in self._lines.items() if line.is_ready]

    def _owner(self, kind: type[ServiceModel | ServiceSampler], name: str) -> str:
        thing = self.registry.get(kind, name)
        assert thing is not None
        return thing.owner

    async def weights_of_base(self, base: TrainingBase) -> str:
        """The digest of a base model's own weights, kept to sample from: reckoned once, as it takes everybody's time."""
        async with self._creating:
            known = self._base_digests.get(base.name)
            if known is None or not self._keeper.weights.path(known).exists():
                keep = partial(self._keeper.weights.keep, dict(base.weights))
                known = self._base_digests[base.name] = await self._compute(keep)
            return known

    async def _make(self, line: CallLine) -> None:
        seq = line.done + 1
        self._busy = line.model_id
        try:
            found = await self._write(partial(self._book.find, line.model_id, seq))
            save = None if found is None else find_save(found.call)
            with self.shelf.still(needed=save is not None):
                made = await self._compute(partial(self._make_now, line, found))
                await self._finish(line, made, save)
        except Exception as error:
            # Not the caller's mistake, and what the model is now is not known: it stands still, its calls are kept.
            log.exception("model=%s call=%d could not be made", line.model_id, seq)
            line.broken = _fault(seq, error)
            self._waiters.tell_all(line.model_id)

    async def _finish(self, line: CallLine, made: MadeCall, save: SaveCall | None) -> None:
        seq = line.done + 1
        answer = msgspec.msgpack.decode(made.answer, type=ModelAnswer)  # pyrefly: ignore[bad-argument-type]
        if isinstance(answer, SavedAnswer):
            await self.shelf.add_saved((line.model_id, seq), answer, save)
        place = (line.model_id, seq)
        charge = self._intake.used(place, answer)
        await self._write(partial(self._book.answer, *place, made.answer, made.chain, charge))
        self._intake.settle(place, charge)
        line.finish(made.chain)
        self._busy = ""
        self._waiters.tell(line.model_id, seq)
        if self._memory.is_due(line):
            await self._compute(partial(self._memory.anchor, line))

    def _make_now(self, line: CallLine, found: BookedCall | None) -> MadeCall:
        thing = self.registry.get(ServiceModel, line.model_id)
        assert thing is not None and found is not None
        model = self._memory.get(thing, lambda: self._closing)
        return make_call(model, self._keeper, line.chain, found)

    async def _sample(self, sampler_id: str, seq: int) -> None:
        found = await self._write(partial(self._book.find, sampler_id, seq))
        sampler = self.registry.get(ServiceSampler, sampler_id)
        assert found is not None and sampler is not None
        if sampler.base not in self.bases:
            raise LedgerError(f"its base {sampler.base} is not served; start with the same --train")
        call = msgspec.msgpack.decode(found.call, type=SampleCall)
        weights = SamplerWeights(
            folder=self.bases[sampler.base].folder,
            file=self._keeper.weights.path(sampler.digest),
            digest=sampler.digest,
        )
        outcome = await self._pool.sample(weights, call)
        if isinstance(outcome, SampleAnswer) and wants_scores(call):
            outcome = await self._compute(partial(self._score, sampler, call, outcome))
        answer, place = encode_fact(outcome), (sampler_id, seq)
        charge = self._intake.used(place, outcome, call)
        await self._write(partial(self._book.answer, *place, answer, "", charge))
        self._intake.settle(place, charge)
        self._waiters.tell(sampler_id, seq)

    def _score(
        self, sampler: ServiceSampler, call: SampleCall, answer: SampleAnswer
    ) -> SampleAnswer:
        base = self.bases[sampler.base]
        if not self._scorer.holds(base, sampler.digest):
            weights = self._keeper.weights.read(sampler.digest)
            self._scorer.load(base, sampler.digest, weights)
        return add_scores(self._scorer, call, answer)

    async def _loaded_states(self) -> set[str]:
        return await self._write(lambda: set(find_loaded(self._book)))

    def _load(self, thing: ServiceModel) -> None:
        try:
            found = self._replay.run(thing, lambda: self._closing)
        except StoreError as error:  # of this model alone: others go on
            log.exception("model=%s stands still: its files are not as they were", thing.id)
            self._lines[thing.id] = self._stand_still(thing, error)
        else:
            if found is not None:
                model, self._lines[thing.id] = found
                self._memory.put(thing.id, model)

    def _stand_still(self, thing: ServiceModel, error: StoreError) -> CallLine:
        """The line of a model that cannot be made again, where the book says that it stood."""
        last = self._book.last_answered(thing.id)
        done, chain = (0, thing.chain) if last is None else (last.seq, last.chain or "")
        why = f"the model cannot be made again ({error}); restart the service"
        return CallLine(model_id=thing.id, done=done, chain=chain, broken=why)

    async def _take_up(self, name: str, seq: int) -> None:
        found = await self._write(partial(self._book.find, name, seq))
        assert found is not None
        line = self._lines.get(name)
        owner = self._owner(ServiceSampler if line is None else ServiceModel, name)
        self._intake.resume(found, owner, samples=line is None)
        if line is not None:
            line.add(seq)
        else:
            self._samples.setdefault(name, deque()).append(seq)

    async def _compute(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._computing, work)

    async def _write(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writing, work)


def _fault(seq: int, error: Exception) -> str:
    return f"call {seq} could not be made ({type(error).__name__}: {error}); restart the service"

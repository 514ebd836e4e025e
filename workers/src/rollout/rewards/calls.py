"""How one source is asked: in batches, several at a time, again after a failure from outside, and not twice for the same.

What is asked about is a unit: one sample, or for a source that compares all samples of a group that are there, in their
order. What a unit gets depends on nothing else than the unit where the source's does; results are by place, never by who
answered first.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from blake3 import blake3

from rollout.errors import DataError, RewardError, RewardUnavailable, UnscoredRows
from rollout.plugins.user_code import describe_failure
from rollout.rewards.builtins import CANNOT_HANG
from rollout.rewards.cache import Answer, RewardCache
from rollout.rewards.host import RewardHost, describe_row
from rollout.rewards.source import RewardSource, code_digest, load_reward
from rollout.rewards.values import Valued, check_value, check_values
from rollout.tools.sandbox.chosen import are_elsewhere
from rollout.types import Completion, Message, Row
from rollout_api.checks.environment.tools import SANDBOXED_REWARDS

PAUSE_FIRST_SECONDS = 0.5
PAUSE_MAX_SECONDS = 30.0
COMPARED_MIN = 2
"""Samples of a group without which there is nothing to compare."""
CACHED = "cached"
"""Among the costs of an answer that was known already."""

_jitter = random.Random()
"""Of our own: the global generator may be part of a run's seeds."""


class SourceRunner(Protocol):
    """What answers one batch."""

    def start(self) -> None:
        """Load the source. Raises SpecError."""
        ...

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> Any:
        """What the source returned. Raises RewardError, RewardUnavailable."""
        ...

    def close(self) -> None:
        """Free everything; idempotent."""
        ...


class InPlace:
    """A builtin, called directly: it cannot hang."""

    def __init__(self, source: RewardSource) -> None:
        self.source = source
        self._function = load_reward(source)

    def start(self) -> None:
        """Nothing to start."""

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> Any:
        """What it returned. Raises RewardError."""
        try:
            return self._function(prompts, completions, rows)
        except KeyError as error:
            row = next(i for i, one in enumerate(rows) if _fails(self._function, one))
            raise RewardError(
                f"{self._said(error)}; first for row {row} of the batch, {describe_row(rows[row])}"
            ) from error

    def close(self) -> None:
        """Nothing to free."""

    def _said(self, error: Exception) -> str:
        return (
            f"reward {self.source.name!r} ({self.source.origin}) raised {describe_failure(error)}"
        )


def _fails(function: Any, row: Row) -> bool:
    try:
        function([()], [Completion(token_ids=(), logprobs=(), finish="stop")], [row])
    except KeyError:
        return True
    return False


class InSandboxes(InPlace):
    """The builtin that has what the policy writes run elsewhere, and bounds its time itself.

    Called in this process, which alone may ask for its sandboxes: nothing of what it judges runs in here.
    """

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> Any:
        """What it returned. Raises RewardError for a row without tests, RewardUnavailable for what was not run."""
        try:
            return self._function(prompts, completions, rows)
        except UnscoredRows as error:
            raise RewardUnavailable(self._said(error), tuple(error.rows)) from error
        except DataError as error:
            raise RewardError(self._said(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBatch:
    """What is asked about; sequences of one length."""

    prompts: Sequence[Sequence[Message]]
    """The conversation before each completion."""
    completions: Sequence[Completion]
    """What is judged."""
    rows: Sequence[Row]
    """The row of each one's task."""
    groups: Sequence[Hashable] | None = None
    """A key for each, equal for samples of one group; None: unknown."""

    def take(self, places: Sequence[int]) -> RewardBatch:
        """The part at these places."""
        if [*places] == [*range(len(self.rows))]:
            return self
        return RewardBatch(
            prompts=[self.prompts[place] for place in places],
            completions=[self.completions[place] for place in places],
            rows=[self.rows[place] for place in places],
            groups=None if self.groups is None else [self.groups[place] for place in places],
        )


Unit = tuple[int, ...]
"""Places that are asked about together and answered together."""


def open_runner(source: RewardSource) -> SourceRunner:
    """In place what cannot hang or runs in sandboxes elsewhere, else in a process of its own."""
    if source.builtin in CANNOT_HANG:
        return InPlace(source)
    if source.builtin in SANDBOXED_REWARDS and are_elsewhere():
        return InSandboxes(source)
    return RewardHost(source)


class SourceCalls:
    """One source. ``start`` early, ``close`` when done; thread-safe. ``cache_path``: see ``RewardCache``."""

    def __init__(
        self,
        source: RewardSource,
        cache_path: Path | None = None,
        *,
        opens: Callable[[RewardSource], SourceRunner] = open_runner,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.source = source
        self._sleep = sleep
        self._runners = [opens(source) for _ in range(source.concurrency)]
        self._free: queue.SimpleQueue[SourceRunner] = queue.SimpleQueue()
        for one in self._runners:
            self._free.put(one)
        entries = source.cache_entries
        self._cache = RewardCache(cache_path, entries, source.name) if entries else None
        self._salt = source_digest(source) if entries else b""

    def start(self) -> None:
        """Load the source. Raises SpecError where it cannot be."""
        for runner in self._runners:
            runner.start()

    def close(self) -> None:
        """End its processes, let go of its cache; idempotent."""
        for runner in self._runners:
            runner.close()
        if self._cache is not None:
            self._cache.close()

    def score(self, batch: RewardBatch) -> list[Valued]:
        """The values of each completion. Raises RewardError, RewardUnavailable with the costs of all."""
        units, alone = self._units(batch)
        said = self._ask(batch, units) if self._cache is None else self._recall(batch, units)
        made = {
            place: one
            for unit, answer in said.answers.items()
            for place, one in zip(unit, answer, strict=True)
        }
        lost = tuple(sorted({*said.lost, *alone}))
        if lost:
            costs = [made[n].costs if n in made else {} for n in range(len(batch.rows))]
            raise RewardUnavailable(said.why or self._why_alone(), lost, costs=costs)
        return [made[place] for place in range(len(batch.rows))]

    def _units(self, batch: RewardBatch) -> tuple[list[Unit], list[int]]:
        """What is asked about, and the samples that nothing is left to be compared with."""
        if not self.source.per_group:
            return [(place,) for place in range(len(batch.rows))], []
        if batch.groups is None:
            raise RewardError(
                f"reward {self.source.name!r} ({self.source.origin}) compares the samples of a group, and here nobody"
                " says which belong together: score evaluations with other rewards"
            )
        groups: dict[Hashable, list[int]] = {}
        for place, group in enumerate(batch.groups):
            groups.setdefault(group, []).append(place)
        whole = [tuple(one) for one in groups.values() if len(one) >= COMPARED_MIN]
        return whole, [n for one in groups.values() if len(one) < COMPARED_MIN for n in one]

    def _why_alone(self) -> str:
        return (
            f"reward {self.source.name!r} ({self.source.origin}) compares the samples of a group, and all but one of it"
            " were lost"
        )

    def _recall(self, batch: RewardBatch, units: Sequence[Unit]) -> _Said:
        """What is known is not asked again, and what is equal is asked once."""
        assert self._cache is not None
        keys = {unit: unit_key(self.source, self._salt, batch, unit) for unit in units}
        known = self._cache.get({key: len(unit) for unit, key in keys.items()})
        first: dict[bytes, Unit] = {}
        for unit, key in keys.items():
            if key not in known:
                first.setdefault(key, unit)
        said = self._ask(batch, list(first.values()))
        fresh = said.answers
        if fresh:
            known |= self._cache.put({keys[unit]: answer for unit, answer in fresh.items()})
        answers: dict[Unit, Answer] = {}
        for unit, key in keys.items():
            costs = [{**one.costs, CACHED: 0.0} for one in fresh.get(unit, ())]
            if key in known:
                answers[unit] = _priced(known[key], costs or [{CACHED: 1.0}] * len(unit))
        asked = [(unit, first[key]) for unit, key in keys.items() if key in first]
        lost = {n for unit, one in asked if not said.lost.isdisjoint(one) for n in unit}
        return _Said(answers=answers, lost=lost, why=said.why)

    def _ask(self, batch: RewardBatch, units: Sequence[Unit]) -> _Said:
        calls = self._cut(units)
        if len(calls) <= 1 or len(self._runners) == 1:
            heard = [self._call(batch, one) for one in calls]
        else:
            with ThreadPoolExecutor(len(self._runners)) as pool:
                heard = list(pool.map(lambda one: self._call(batch, one), calls))
        return _Said(
            answers={unit: answer for one in heard for unit, answer in one.answers.items()},
            lost={place for one in heard for place in one.lost},
            why=next((one.why for one in heard if one.why), ""),
        )

    def _cut(self, units: Sequence[Unit]) -> list[Sequence[Unit]]:
        """Calls: of one group each, or of as many samples as a batch may have, shared among the processes."""
        share = -(-len(units) // len(self._runners))
        size = 1 if self.source.per_group else max(1, min(share, self.source.batch_size or share))
        return [units[start : start + size] for start in range(0, len(units), size)]

    def _call(self, batch: RewardBatch, units: Sequence[Unit]) -> _Said:
        """One call, and again what lay outside, after pauses that grow."""
        runner = self._free.get()
        try:
            pause = PAUSE_FIRST_SECONDS
            said = self._try(runner, batch, units)
            for _ in range(self.source.retries):
                if not said.lost:
                    break
                self._sleep(pause * _jitter.uniform(0.5, 1.0))
                pause = min(2 * pause, PAUSE_MAX_SECONDS)
                left = [unit for unit in units if unit not in said.answers]
                again = self._try(runner, batch, left)
                said = _Said(
                    answers={**said.answers, **again.answers}, lost=again.lost, why=again.why
                )
            return said
        finally:
            self._free.put(runner)

    def _try(self, runner: SourceRunner, batch: RewardBatch, units: Sequence[Unit]) -> _Said:
        places = [place for unit in units for place in unit]
        part = batch.take(places)
        try:
            given = runner.score(part.prompts, part.completions, part.rows)
            values = dict(zip(places, check_values(self.source, given, part.rows), strict=True))
            lost, why = set[int](), ""
        except RewardUnavailable as error:
            lost, why = {places[index] for index in error.lost}, str(error)
            values = self._partly(error, places, part.rows)
        whole = units if len(values) == len(places) else [u for u in units if values.keys() >= {*u}]
        answers = {unit: [values[place] for place in unit] for unit in whole}
        return _Said(answers=answers, lost=lost, why=why)

    def _partly(
        self, error: RewardUnavailable, places: Sequence[int], rows: Sequence[Row]
    ) -> dict[int, Valued]:
        """What those got that were not lost, where the source told it."""
        if len(error.values) != len(places):
            return {}
        return {
            place: check_value(self.source, value, rows[index], index)
            for index, (place, value) in enumerate(zip(places, error.values, strict=True))
            if value is not None and index not in error.lost
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Answers by unit; places that the source could not get at, and why. What is in neither was not asked to the end."""

    answers: dict[Unit, Answer]
    lost: set[int]
    why: str


def _priced(answer: Answer, costs: Sequence[dict[str, float]]) -> Answer:
    return [Valued(values=one.values, costs=cost) for one, cost in zip(answer, costs, strict=True)]


READS_TEXT = frozenset({"code-tests", "format", "judge", "math-verify"})
"""Builtins that look at what was said, whatever tokens it is made of."""


def unit_key(source: RewardSource, salt: bytes, batch: RewardBatch, unit: Unit) -> bytes:
    """The digest of what a source sees of these samples, log-probabilities and versions left out; ``salt`` is the source's."""
    seen: list[object] = []
    for place in unit:
        one = batch.completions[place]
        said = [(message.role, message.content) for message in batch.prompts[place]]
        seen += [said, one.text, one.finish, dict(batch.rows[place])]
        if source.builtin not in READS_TEXT:
            seen += [one.token_ids, one.turn_rewards]
    return blake3(salt + _encoder.encode(seen)).digest()


_encoder = msgspec.msgpack.Encoder(order="deterministic")


def source_digest(source: RewardSource) -> bytes:
    """What an answer depends on beside the samples: what the source is, its parameters, and the file of its function."""
    kept = (
        source.builtin,
        source.module,
        source.path,
        source.function,
        source.name,
        dict(source.parameters),
        source.counts,
        source.per_group,
        code_digest(source),
    )
    return blake3(_encoder.encode(kept)).digest()

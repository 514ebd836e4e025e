"""All sources of a run's reward, and what they come to for each completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blake3 import blake3

from rollout.errors import RewardUnavailable
from rollout.rewards.calls import RewardBatch, SourceCalls
from rollout.rewards.composite import passes, total
from rollout.rewards.source import RewardSource
from rollout.rewards.values import Valued
from rollout.types import Completion, Message, Row

Scored = tuple[float, dict[str, float]]
"""The whole reward, and each source's value before weighting; named floats as ``source/name``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardVerdict:
    """Of one completion. ``parts`` and ``costs`` have named values as ``source/name``."""

    total: float
    """The reward: the weighted sum, gates and bounds included."""
    parts: dict[str, float]
    """Values of the sources that were asked, before weighting."""
    costs: dict[str, float] = field(default_factory=dict)
    """What asking cost (tokens, a price)."""


class RewardPipeline:
    """Scores batches with every source. ``start`` early, ``close`` when done; thread-safe.

    ``cache_folder``: where sources keep answers; None: in memory.
    """

    def __init__(self, sources: Sequence[RewardSource], cache_folder: Path | None = None) -> None:
        self.sources = tuple(sources)
        self._calls = [
            SourceCalls(source, None if cache_folder is None else cache_folder / _file(source))
            for source in sources
        ]

    def start(self) -> None:
        """Load every source. Raises SpecError naming the one that cannot be."""
        for one in self._calls:
            one.start()

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[Scored]:
        """Total and parts of each completion, ``completions[i]`` answering ``prompts[i]``; raises as ``judge``."""
        batch = RewardBatch(prompts=prompts, completions=completions, rows=rows)
        return [(one.total, one.parts) for one in self.judge(batch)]

    def judge(self, batch: RewardBatch) -> list[RewardVerdict]:
        """What every completion is worth, and what it cost to know.

        Raises RewardError naming source and row when a source raises, hangs, ends its process, or
        returns anything but one finite number (or named finite numbers) per completion. RewardUnavailable
        names the completions that a source could not score for what lies outside of it, with what all of them cost.
        """
        found = _Found(len(batch.rows))
        for calls in self._calls:
            places = found.asked(calls.source)
            if not places:
                continue
            try:
                found.take(calls.source, places, calls.score(batch.take(places)))
            except RewardUnavailable as error:
                found.pay(calls.source, places, error.costs)
                lost = tuple(places[index] for index in error.lost)
                raise RewardUnavailable(str(error), lost, costs=found.costs) from error
        return [
            RewardVerdict(total=total(self.sources, parts), parts=parts, costs=costs)
            for parts, costs in zip(found.parts, found.costs, strict=True)
        ]

    def share(self, before: RewardPipeline) -> None:
        """Ask the sources that ``before`` asks, too, as it does, in the same processes; call before ``start``.

        A source is the same whatever folders its file was looked for in.
        """
        for place, one in enumerate(self._calls):
            found = before.find(one.source)
            if found is not None:
                one.close()
                self._calls[place] = found

    def find(self, source: RewardSource) -> SourceCalls | None:
        """How it asks a source; None where it does not."""
        return next((one for one in self._calls if _is_same(one.source, source)), None)

    def close(self, but: Sequence[RewardPipeline] = ()) -> None:
        """End all child processes, but those that one of ``but`` goes on with; idempotent."""
        for one in self._calls:
            if not any(other.asks(one) for other in but):
                one.close()

    def asks(self, calls: SourceCalls) -> bool:
        """Whether it asks a source by these."""
        return any(one is calls for one in self._calls)


class _Found:
    """What is known of a batch so far."""

    def __init__(self, size: int) -> None:
        self.parts: list[dict[str, float]] = [{} for _ in range(size)]
        self.costs: list[dict[str, float]] = [{} for _ in range(size)]
        self._settled: set[int] = set()

    def asked(self, source: RewardSource) -> list[int]:
        """Those that a source is asked about: not what a gate has settled, unless it compares whole groups."""
        places = range(len(self.parts))
        if source.per_group or not self._settled:
            return [*places]
        return [n for n in places if n not in self._settled]

    def take(self, source: RewardSource, places: Sequence[int], given: Sequence[Valued]) -> None:
        for place, one in zip(places, given, strict=True):
            self.parts[place].update(one.values)
        if source.gate is not None:
            told = zip(places, given, strict=True)
            self._settled |= {n for n, one in told if not passes(source, one.values[source.name])}
        self.pay(source, places, [one.costs for one in given])

    def pay(
        self, source: RewardSource, places: Sequence[int], costs: Sequence[Mapping[str, float]]
    ) -> None:
        for place, one in zip(places, costs, strict=bool(costs)):
            for name, value in one.items():
                self.costs[place][f"{source.name}/{name}"] = value


def _is_same(old: RewardSource, new: RewardSource) -> bool:
    return replace(old, folders=()) == replace(new, folders=())


def _file(source: RewardSource) -> str:
    """The name of a source's file: whatever the source is called."""
    return f"{blake3(source.name.encode()).hexdigest()[:16]}.sqlite"

"""A plugin that is told of a run's steps and of its end, by a thread that reads the run's own file of metrics.

Nothing waits for it, and nothing is kept for it in memory: what it has not taken lies in ``metrics.jsonl`` behind a
cursor, and is read again after a kill. A fact is told in order until it is taken, with the same id each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from rollout.errors import StoreError
from rollout.plugins.sidecar.client import TRACK, PluginClient
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.manifest import PluginFolder
from rollout.plugins.sidecar.wire import failure_of
from rollout.run_events import RunEnd
from rollout.tracking.last_step import (
    Place,
    is_new,
    place_of,
    read_last_step,
    write_last_step,
)
from rollout.tracking.telling import Teller

FACTS_MAX = 256
"""Told at once."""
READ_BYTES = 2 << 20
"""Read at once; no line of metrics is longer."""
TELL_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Whose facts they are, and where they lie: ``metrics`` is the run's own file."""

    uid: str
    name: str
    attempt: int
    metrics: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FactBatch:
    """Facts to tell next. ``offset``: bytes of the file up to their end; ``last``: the place of the last one."""

    facts: Sequence[contract.Fact]
    offset: int
    last: Place


def read_facts(run: TrackedRun, offset: int, last: Place) -> FactBatch:
    """The steps behind ``last`` from a byte of the file on, at most ``FACTS_MAX``. Raises StoreError for what is no file of metrics."""
    try:
        with run.metrics.open("rb") as file:
            file.seek(offset)
            data = file.read(READ_BYTES)
    except OSError as error:
        raise StoreError(f"{run.metrics} cannot be read: {error}") from error
    facts: list[contract.Fact] = []
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n") or len(facts) == FACTS_MAX:
            break  # it is being written, or comes next
        place = _place(run, line, offset)
        offset += len(line)
        if is_new(last, place):
            facts.append(_step_fact(run, place, line))
            last = place
    if len(data) == READ_BYTES and b"\n" not in data:
        raise StoreError(f"{run.metrics}: a line at byte {offset} is longer than {READ_BYTES}")
    return FactBatch(facts=facts, offset=offset, last=last)


def _place(run: TrackedRun, line: bytes, offset: int) -> Place:
    try:
        metrics = json.loads(line)
        return place_of(int(metrics["step"]), metrics)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{run.metrics}: byte {offset} begins no step: {error!r}") from error


def _step_fact(run: TrackedRun, place: Place, line: bytes) -> contract.Fact:
    lineage, step = place
    metrics = line.decode().rstrip("\n")
    return contract.Fact(
        id=f"{run.uid}/{lineage}/{step}", lineage=lineage, step=step, metrics_json=metrics
    )


def end_fact(run: TrackedRun, last: Place, outcome: RunEnd) -> contract.Fact:
    """How an attempt has ended, after its last step."""
    end = contract.RunEnd(kind=outcome.kind, reason=outcome.reason, message=outcome.message)
    lineage, step = last
    ident = f"{run.uid}/end/{run.attempt}"
    return contract.Fact(id=ident, lineage=lineage, step=max(step, 0), end=end)


class PluginTracker:
    """Tells one plugin, from a thread of its own. ``close`` when done; what is not told by then is told by the next one."""

    def __init__(
        self, plugin: PluginFolder, parameters: Mapping[str, str], run: TrackedRun
    ) -> None:
        self._client = PluginClient(plugin, parameters)
        self._run = run
        self._folder = _place_of(plugin, parameters, run)
        self._offset, self.last_step = 0, read_last_step(self._folder)
        self._outcome: RunEnd | None = None
        title = f"plugin {plugin.title}"
        self.teller = Teller(title, self._tell_next, self._waiting, self._client.close)
        self.teller.start()

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Say that there is a step in the file; never waits."""
        del step, metrics
        self.teller.wake()

    @property
    def trouble(self) -> str:
        """Why it takes nothing, where telling fails time and again."""
        return self.teller.trouble

    def close(self, outcome: RunEnd | None = None) -> None:
        """Tell what is left and how the run ended, for so long as the end of a run may wait; idempotent."""
        self._outcome = outcome
        self.teller.close()

    def _waiting(self) -> str:
        lineage, step = self.last_step
        return f"it has taken what is up to step {step} of lineage {lineage}; the rest waits in {self._run.metrics}"

    def _tell_next(self) -> bool:
        """Whether there may be more."""
        batch = read_facts(self._run, self._offset, self.last_step)
        if batch.facts:
            self._tell(batch.facts)
            write_last_step(self._folder, batch.last)
        moved = batch.offset > self._offset
        self._offset, self.last_step = batch.offset, batch.last
        if moved or self._outcome is None:
            return moved
        self._tell([end_fact(self._run, self.last_step, self._outcome)])
        self._outcome = None
        return False

    def _tell(self, facts: Sequence[contract.Fact]) -> None:
        request = contract.TrackRequest(run_uid=self._run.uid, run_name=self._run.name, facts=facts)
        answer = self._client.ask(TRACK, request, TELL_SECONDS)
        if answer.HasField("failure"):
            raise failure_of(answer.failure)


def _place_of(plugin: PluginFolder, parameters: Mapping[str, str], run: TrackedRun) -> Path:
    """Where its cursor lies: another one for other parameters, which may name another place."""
    key = json.dumps([str(plugin.folder), sorted(parameters.items())])
    name = f"{plugin.manifest.name}-{blake3(key.encode()).hexdigest()[:12]}"
    folder = run.metrics.parent / "tracking" / "plugins" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder

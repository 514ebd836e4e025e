"""What a run has left, for reading: its configuration, its steps with their batches, its anchors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import msgspec

from rollout.coordinator.batch_building import (
    build_groups_batch,
    build_next_groups,
    build_rows_batch,
    plan_next_rows,
    recorded_ordinals,
)
from rollout.coordinator.build import build_plan
from rollout.coordinator.rows import DataRows, build_rows
from rollout.coordinator.rules.batch_selection import Ready, decide_batch, expire_old
from rollout.coordinator.state import RunState, build_state
from rollout.errors import SpecError
from rollout.ledger.opening import open_reader
from rollout.ledger.sql.reader import Reader
from rollout.objects.opening import open_source
from rollout.protocol import messages as m
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.places import read_config
from rollout.seams import ObjectSource
from rollout_api.worker import WorkerConfig


class Recording:
    """One run's folder. Rows of data are opened when a step needs them."""

    def __init__(self, config: WorkerConfig, ledger: Reader, objects: ObjectSource) -> None:
        self.config = config
        self.ledger = ledger
        self.objects = objects
        train = config.spec.train
        if train is None:
            raise SpecError("this run has no learner: it infers or evaluates, and trains nothing")
        self._offline = not train.algorithm.is_online

    @cached_property
    def _rows(self) -> DataRows:
        return build_rows(self.config)

    @property
    def last_step(self) -> int:
        """The last committed step."""
        return self.ledger.run().step

    def record(self, step: int) -> m.StepRecord:
        """A committed step. Raises SpecError when there is none of that number."""
        record = self.ledger.record(step)
        if record is None:
            raise SpecError(f"step {step}: this run has committed steps 1 to {self.last_step}")
        return record

    def batch(self, step: int) -> m.Batch:
        """The batch that a committed step was given. Raises LedgerError, DataError or SpecError."""
        recorded = self.ledger.batch(step)
        if not self._offline:
            return build_groups_batch(recorded)
        ordinals = recorded_ordinals(recorded)
        return build_rows_batch(step, ordinals, self._rows.train(ordinals), recorded.cursor)

    def next_batch(self) -> m.Batch:
        """The batch of the step after the last committed one: where a run failed, what it failed on.

        Raises SpecError when the batch is not complete, or no step would follow.
        """
        state = build_state(self.ledger.state())
        step, plan = state.step + 1, build_plan(self.config, self._rows)
        if state.cursor.exhausted or step > (plan.train.steps_total or step):
            raise SpecError(f"step {step}: the run ended with step {state.step}")
        if self._offline:
            ordinals, cursor = plan_next_rows(plan, state.cursor.next_ordinal)
            return build_rows_batch(step, ordinals, self._rows.train(ordinals), cursor)
        window = expire_old(plan, state.step, state.views())
        decision = decide_batch(plan, state.cursor.next_ordinal, window)
        if not isinstance(decision, Ready):
            raise SpecError(f"step {step}: not committed, and its batch {_describe_lack(state)}")
        built = msgspec.msgpack.encode(build_next_groups(plan, state.groups, step, decision))
        return msgspec.msgpack.decode(built, type=m.Batch)

    def anchors(self) -> list[m.AnchorManifest]:
        """Anchors of the live chain whose objects are all there, oldest first."""
        return [
            anchor
            for anchor in self.ledger.anchors()
            if all(map(self.objects.has, anchor.objects.values()))
        ]


@contextmanager
def open_recording(run_dir: Path) -> Iterator[Recording]:
    """The run in ``run_dir``, live or over. Raises SpecError or LedgerError when there is none."""
    folder = RunDir(path=run_dir)
    config = read_config(folder)
    with open_reader(config.spec.storage, folder.ledger, config.run.uid) as ledger:
        yield Recording(config, ledger, open_source(config, folder.objects))


def _describe_lack(state: RunState) -> str:
    done = sum(view.resolved for view in state.views().values())
    return f"is not complete: {done} of {len(state.groups)} admitted tasks are done"

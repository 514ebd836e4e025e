"""A learner that stands still to be imaged has saved its step, says what it holds, and goes on as if it had not stood."""

from __future__ import annotations

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rollout.learner.checkpoint import Progress
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.parallel import Parallel
from rollout.learner.standby.still import StillPoint, Stood
from rollout.snapshots.processes.cell import LIVE, ask, locked, make_cell, renew
from rollout.snapshots.processes.init import KEEPER, STARTED
from rollout.snapshots.processes.point import HOLD
from rollout.snapshots.processes.told import CELL_VARIABLE, CONFIG_VARIABLE, weights_of


def stand(parts, calls, at: int) -> Progress:
    ticks = itertools.count()
    watch = Watch(clock=lambda: float(next(ticks)), stands_still=lambda: calls.committed == at)
    reached = run_learner(parts, parts.session.start(1, "here"), watch)
    assert isinstance(reached, Progress)
    return reached


@pytest.mark.parametrize("at", [0, 2, 3])
def test_and_ends_where_it_would_have(world, coordinator, at):
    calm, calls = coordinator(steps_max=5), coordinator(steps_max=5)
    replace(world, folder=world.folder / "calm").run(calm)
    parts = world.parts(calls)
    reached = stand(parts, calls, at)
    assert (reached.step, calls.anchors[-1].step, calls.anchors[-1].chain) == (
        at,
        at,
        reached.chain,
    )
    started = parts.session.start(1, "here")
    assert run_learner(parts, started, world.watch, reached) == "Succeeded"
    assert calls.records == calm.records


def test_and_tells_its_state_as_often_as_it_is_asked_and_takes_what_it_is_handed(
    world, coordinator, tmp_path
):
    calls = coordinator(steps_max=5)
    parts = world.parts(calls)
    cell = make_cell(tmp_path / "cells", "learner", ())
    (cell.folder / KEEPER).write_text(json.dumps({"init": os.getpid()}))
    (cell.folder / STARTED).write_text(json.dumps({"root": 1, "pipe": 2}))
    still = StillPoint({CELL_VARIABLE: str(cell.folder)}, Parallel())
    assert not still.is_wanted()
    stood = Stood(parts=parts, progress=stand(parts, calls, 2))
    with ThreadPoolExecutor(1) as pool, locked(cell, LIVE):
        with locked(cell, HOLD):
            assert still.is_wanted()
            waits = pool.submit(still.stand, stood)
            first, second = ask(cell), ask(cell)
            assert first == second
            assert first.step == 2
            assert weights_of(first.digest) == stood.progress.version.digest
            renew(cell, {CONFIG_VARIABLE: "/elsewhere/worker.json"})
        assert waits.result() == Path("/elsewhere/worker.json")
        with locked(cell, HOLD):
            waits = pool.submit(still.stand, stood)
            next(iter(parts.trainer.policy.masters.values())).data.add_(1)
            assert ask(cell).digest != first.digest
        assert waits.result() is None


def test_outside_of_a_cell_it_never_does():
    still = StillPoint({}, Parallel())
    assert not still.is_wanted()
    assert weights_of("") == weights_of("no digest of ours") == ""

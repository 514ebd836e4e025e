"""Two ranks stand still for an image as one learner: one digest of both, one time to go on, and each takes what the first is handed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rank_kit import on_two_ranks

from rollout.learner.build import build_trainer
from rollout.learner.model.parallel import Parallel
from rollout.learner.standby.orders import GO, TELL, Orders
from rollout.learner.standby.still import StillPoint, Stood
from rollout.snapshots.processes.cell import LIVE, Cell, ask, locked, make_cell, renew
from rollout.snapshots.processes.init import KEEPER, STARTED
from rollout.snapshots.processes.point import HOLD, READY, RENEWED
from rollout.snapshots.processes.told import CELL_VARIABLE, CONFIG_VARIABLE

NEW = "ROLLOUT_TEST_HANDED_OVER"


@pytest.fixture
def cell(tmp_path) -> Cell:
    made = make_cell(tmp_path / "cells", "learner", ())
    (made.folder / KEEPER).write_text(json.dumps({"init": os.getpid()}))
    (made.folder / STARTED).write_text(json.dumps({"root": 1, "pipe": 2}))
    return made


def wait_for_point(cell: Cell) -> None:
    """Until rank 0 has it."""
    while not (cell.folder / READY).exists():
        pass


@pytest.mark.process
@pytest.mark.parametrize("sharded", [False, True])
def test_two_ranks_tell_one_digest_and_go_on_together(model_path, settings, cell, sharded):
    def work(parallel: Parallel) -> tuple[Path | None, str | None, Path | None]:
        trainer = build_trainer(model_path, settings, parallel)
        still = StillPoint({CELL_VARIABLE: str(cell.folder)}, parallel)
        stood = cast(
            "Stood",
            SimpleNamespace(
                parts=SimpleNamespace(trainer=trainer), progress=SimpleNamespace(step=2)
            ),
        )

        def stand() -> Path | None:
            while not still.is_wanted():
                pass
            return still.stand(stood)

        first, again = stand(), stand()
        return first, os.environ.get(NEW), again

    told = {CONFIG_VARIABLE: "/elsewhere/worker.json", NEW: "today"}
    with ThreadPoolExecutor(1) as pool, locked(cell, LIVE):
        with locked(cell, HOLD):
            ranks = pool.submit(on_two_ranks, work, sharded=sharded)
            wait_for_point(cell)
            first, second = ask(cell), ask(cell)
            assert first == second
            assert first.step == 2
            renew(cell, told)
        while (cell.folder / RENEWED).exists():
            pass
        with locked(cell, HOLD):
            assert ask(cell).digest == first.digest
        expected = (Path("/elsewhere/worker.json"), "today", None)
        assert ranks.result() == [expected, expected]


def test_a_rank_heeds_the_orders_of_its_own_stand_only_and_each_once(tmp_path):
    """A file that an earlier stand has left says nothing."""
    leads = Orders(folder=tmp_path, name="earlier")
    leads.give(TELL)
    leads.give(GO)
    leads = Orders(folder=tmp_path, name="now")
    follows: Any = Orders(folder=tmp_path, name="now")
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(follows.wait)
        assert not heard.done()
        leads.give(TELL)
        assert heard.result() == TELL
        heard = pool.submit(follows.wait)
        assert not heard.done()
        leads.give(GO)
        assert heard.result() == GO

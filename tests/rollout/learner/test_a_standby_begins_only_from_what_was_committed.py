"""The seat has one holder and is free when it dies; what a standby holds serves only where the ledger has the same chain."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rollout.learner.standby.following import Held
from rollout.learner.standby.seat import SEAT_VARIABLE, find_seat, read_holder

TAKE = f"""
import os, sys
from pathlib import Path
from rollout.learner.standby.seat import find_seat
print(find_seat(Path(sys.argv[1]), {{"{SEAT_VARIABLE}": sys.argv[2]}}).take(), flush=True)
sys.stdin.read()
"""


def begin(folder, name):
    """Another process that tries the seat, says whether it has it, and lives until its input ends."""
    words = [sys.executable, "-c", TAKE, str(folder), name]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip() == "True"


@pytest.mark.process
def test_the_seat_is_the_next_ones_when_its_holder_is_killed(tmp_path):
    first, has_first = begin(tmp_path, "learner")
    second, has_second = begin(tmp_path, "learner-standby")
    try:
        assert (has_first, has_second) == (True, False)
        assert read_holder(tmp_path) == "learner"
        first.kill()
        first.wait()
        seat = find_seat(tmp_path, {SEAT_VARIABLE: "third"})
        assert seat is not None
        assert seat.take()
        assert read_holder(tmp_path) == "third"
    finally:
        for one in (first, second):
            one.kill()
            one.communicate()


def test_a_run_with_one_learner_has_no_seat(tmp_path):
    assert find_seat(tmp_path, {}) is None
    assert read_holder(tmp_path) == ""


def standing(step=5, chain="c5", lineage=1):
    progress = SimpleNamespace(step=step, chain=chain, lineage=lineage)
    return Held(progress=progress, fresh=False, lineage=lineage, step=step)


def begun(*, anchor=None, replay=(), lineage=1):
    """What a coordinator answers: pairs of step and chain value."""
    steps = [SimpleNamespace(step=step, chain=chain) for step, chain in replay]
    at = None if anchor is None else SimpleNamespace(step=anchor[0], chain=anchor[1])
    return SimpleNamespace(anchor=at, replay=tuple(steps), lineage=lineage)


@pytest.mark.parametrize(
    ("started", "serves"),
    [
        (begun(anchor=(5, "c5")), True),
        (begun(anchor=(3, "c3"), replay=[(4, "c4"), (5, "c5"), (6, "c6")]), True),
        (begun(replay=[(5, "c5")]), True),
        (begun(anchor=(5, "other")), False),
        (begun(anchor=(3, "c3"), replay=[(4, "c4"), (5, "other")]), False),
        (begun(anchor=(3, "c3"), replay=[(4, "c4")]), False),
        (begun(anchor=(7, "c7")), False),
        (begun(anchor=(5, "c5"), lineage=2), False),
    ],
    ids=[
        "the newest anchor's",
        "in the middle of what follows it",
        "before the first anchor",
        "another chain at the anchor",
        "another chain at a step",
        "ahead of the ledger",
        "behind the anchor",
        "of a lineage that was left",
    ],
)
def test_what_is_held_serves_where_the_ledger_has_its_chain(started, serves):
    assert standing().serves(started) is serves


def test_a_state_left_half_way_begins_with_an_anchor_only():
    left = Held(fresh=False, lineage=1, step=5)

    assert not left.can_begin(begun(replay=[(5, "c5")]))
    assert left.can_begin(begun(anchor=(3, "c3")))
    assert Held().can_begin(begun(replay=[(1, "c1")]))
    assert not left.asks.replays
    assert standing().asks.replays

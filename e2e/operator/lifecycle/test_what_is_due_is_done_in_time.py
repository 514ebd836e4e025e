"""A deadline, and the time to live of a finished run's children, are kept within two seconds.

Wall time is asserted because it is what is promised: by the median of three runs, since one may meet a busy moment.
What came due while nobody operated is in test_nobody_operates.py.
"""

from statistics import median

import pytest
from clocks import LATE_SECONDS_MAX, RUNS, STAMP_SECONDS, Watcher, seconds_of

from runs import build_run
from waiting import Pace

pytestmark = pytest.mark.process

ACTIVE_SECONDS, TTL_SECONDS = 10, 6
LIMITS = {"activeSeconds": ACTIVE_SECONDS, "noProgressSeconds": 5}
BRIEF = {"limits": {"ttlSecondsAfterFinished": TTL_SECONDS}}


def test_a_run_ends_when_its_time_is_over(world):
    watcher = Watcher(world, RUNS)
    world.kubectl.apply(*(build_run(name, {"limits": LIMITS}) for name in RUNS))
    watcher.wait_for_all(lambda name: watcher.status(name).get("startTime"), "no run began")
    began = {name: seconds_of(watcher.status(name)["startTime"]) for name in RUNS}

    with Pace() as pace:
        ended = watcher.wait_for_all(watcher.finished, "a run outlived its deadline")

    late = [ended[name] - began[name] - ACTIVE_SECONDS for name in RUNS]
    assert min(late) >= 0
    assert median(late) <= pace.stretch(LATE_SECONDS_MAX) + STAMP_SECONDS, late
    assert {watcher.finished(name) for name in RUNS} == {"Failed"}


def test_children_go_when_their_time_is_over(world):
    watcher = Watcher(world, RUNS)
    world.kubectl.apply(*(build_run(name, BRIEF) for name in RUNS))
    for name in RUNS:
        world.wait_for("Ready", "True", "Running", name)
    for name in RUNS:
        watcher.succeed(name)
    watcher.wait_for_all(watcher.finished, "a run did not finish")
    ended = {name: seconds_of(watcher.status(name)["completionTime"]) for name in RUNS}

    with Pace() as pace:
        gone = watcher.wait_for_all(lambda name: not watcher.children(name), "children are left")

    late = [gone[name] - ended[name] - TTL_SECONDS for name in RUNS]
    assert min(late) >= 0
    assert median(late) <= pace.stretch(LATE_SECONDS_MAX) + STAMP_SECONDS, late

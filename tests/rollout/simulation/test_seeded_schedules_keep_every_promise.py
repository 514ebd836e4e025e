"""Runs in virtual time, with kills, freezes, lost answers, skewed clocks, lost actors and failing samples.

A seed that fails prints its schedule and what happened; ``simulate.py SEED`` beside this file runs it again.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from scenario import (
    KINDS,
    LATE_FIRST,
    NOTICE,
    SLOW_FIRST,
    STOP,
    build_scenario,
    stopped_as_it_comes_back,
)
from simulate import run_scenario, simulate

QUICK = 20
LONG = 300
SLOW_QUICK = (SLOW_FIRST + 7, SLOW_FIRST + 8)
LATE_QUICK = (LATE_FIRST + 5, LATE_FIRST + 7)
BROKE_ONCE = (689869558, 739393367, 435865109, 327871989, 3000620)
"""Fresh seeds that broke a promise, each of another cause.

A claim whose rows were forgotten by a commit while others were read; registrations whose answer was lost (two); groups
that entered before a fork and were sampled after it, by a policy too old for their step; a learner that was replaced and
spoke first to a coordinator that had begun after both.
"""
LATE_LONG = range(LATE_FIRST, LATE_FIRST + 180)
SLOW_LONG = range(SLOW_FIRST, SLOW_FIRST + 120)


def check(seeds):
    done = Counter()
    for seed in seeds:
        report = simulate(seed)
        assert not report.broken, report.explain()
        done.update(report.counts)
        done[f"ended: {report.outcome}"] += 1
        done["equal to the undisturbed run"] += report.scenario.must_repeat
    return done


def test_a_few_schedules():
    done = check(range(QUICK))
    assert done["equal to the undisturbed run"] >= 1
    assert done["late copies"] > 0
    assert done["told to leave"] > 0
    assert done["stop Preempted"] > 0
    assert done["saved on notice"] > 0


def test_a_stop_is_heard_by_a_learner_that_comes_back_as_another():
    ended = Counter()
    for seed in range(12):
        report = run_scenario(stopped_as_it_comes_back(seed))
        assert not report.broken, report.explain()
        ended[report.outcome] += 1
    assert ended["Stopped"] > 0


def test_slow_work_that_is_interrupted_and_moves():
    done = check(SLOW_QUICK)
    assert done["beginnings"]
    assert done["gone on with"]
    assert done["moved: steal"] + done["moved: deadline"]


def test_samples_that_are_given_up_and_come_late():
    done = check(LATE_QUICK)
    assert done["given up"]
    assert done["forks"]


def test_schedules_that_broke_a_promise_once():
    check(BROKE_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(LATE_LONG.start, LATE_LONG.stop, 60))
def test_many_samples_that_are_given_up_and_come_late(first):
    done = check(range(first, min(LATE_LONG.stop, first + 60)))
    assert done["given up"] > done["forks"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SLOW_LONG.start, SLOW_LONG.stop, 30))
def test_much_slow_work(first):
    done = check(range(first, min(SLOW_LONG.stop, first + 30)))
    assert done["moved: steal"]
    assert done["moved: deadline"]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, LONG, 70))
def test_many_schedules(first):
    check(range(first, min(LONG, first + 70)))


def test_the_seeds_meet_every_fault_and_every_kind_of_run():
    scenarios = [build_scenario(seed) for seed in range(LONG)]
    assert {fault.kind for one in scenarios for fault in one.faults} == {*KINDS, NOTICE, STOP}
    assert {one.num_actors for one in scenarios} == {1, 2, 3, 4}
    assert {one.plan.train.staleness_max for one in scenarios} == {0, 1, 2, 3}
    for staleness in range(4):
        some = [one for one in scenarios if one.plan.train.staleness_max == staleness]
        assert {one.plan.train.waves_max is None for one in some} == {True, False}
        assert {one.plan.train.samples_min is None for one in some} == {True, False}
    assert sum(one.must_repeat for one in scenarios) >= 20


def test_a_seed_tells_the_same_story_twice():
    assert run_scenario(build_scenario(7)).trace == run_scenario(build_scenario(7)).trace


@pytest.mark.process
def test_a_seed_is_told_by_the_command_that_a_failure_prints():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("simulate.py")), "3"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "seed 3: kept" in done.stdout

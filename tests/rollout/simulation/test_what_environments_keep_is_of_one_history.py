"""Kills, lost answers, expiry and forks: each sample read what was there as of its version, and only consumed ones wrote."""

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import msgspec
import pytest
from scenario import LATE_FIRST, SLOW_FIRST, build_scenario
from simulate import run_scenario

from rollout.coordinator.memory.writes import rows_of_step
from rollout.ledger.records import Disposition

QUICK = (*range(6), SLOW_FIRST + 7, LATE_FIRST + 5, LATE_FIRST + 7)
LONG = (*range(6, 120), *range(SLOW_FIRST, SLOW_FIRST + 30), *range(LATE_FIRST, LATE_FIRST + 60))


def check(seeds):
    done = Counter()
    for seed in seeds:
        scenario = replace(build_scenario(seed), remembers=True)
        report = run_scenario(scenario)
        assert not report.broken, report.explain()
        done.update(report.counts)
        if scenario.must_repeat:
            calm = run_scenario(scenario.calm())
            assert calm.history == report.history, report.explain()
            done["equal to the undisturbed run"] += 1
    return done


def test_a_few_schedules():
    done = check(QUICK)
    assert done["equal to the undisturbed run"]
    assert done["given up"]
    assert done["forks"]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(LONG), 51))
def test_many_schedules(first):
    check(LONG[first : first + 51])


def everybody_writes(step, written, dispositions):
    everybody = [
        Disposition(task_id=task.task_id, sample=row.sample, kind="consumed")
        for task, rows in written
        for row in rows
    ]
    return rows_of_step(step, written, everybody)


def nobody_writes(step, written, dispositions):
    return ()


def the_last_comes_first(step, written, dispositions):
    made = rows_of_step(step, written, dispositions)
    turned = zip(made, [row.ordinal for row in reversed(made)], strict=True)
    return tuple(msgspec.structs.replace(row, ordinal=ordinal) for row, ordinal in turned)


@pytest.mark.parametrize("bug", [everybody_writes, nobody_writes, the_last_comes_first])
def test_a_coordinator_that_writes_down_something_else_is_caught(bug):
    with patch("rollout.coordinator.calls.commits.rows_of_step", bug):
        reports = [run_scenario(replace(build_scenario(seed), remembers=True)) for seed in (7, 1)]
    assert any(report.broken for report in reports)

"""A run with a standby goes on from the state that it holds, whatever rank dies and whenever, to the chain of an undisturbed run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from local_jobs import is_named, members, start_job
from ruins import check_same

from rollout.learner.standby.seat import read_holder

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

STANDBY = "learner.standby=true"
STEPS = 12


def learners(job, name):
    """The processes of one of the two learners, by the log that they write."""
    log = job.run_dir / "logs" / f"{name}.log"
    return [one for one in members(job.run_dir) if is_named(one, "learner") and writes(one, log)]


def writes(process, log):
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink() == log
    except OSError:
        return False


def rank_of(process):
    """None for the launcher of several ranks."""
    if "rollout.entrypoints.ranks" in process.cmdline():
        return None
    return int(process.environ().get("RANK", "0"))


def kill_the_one(job, rank=0):
    """SIGKILL one rank of the learner that trains; the name of the other, which is to take its place."""
    holder = read_holder(job.run_dir)
    [process] = [one for one in learners(job, holder) if rank_of(one) == rank]
    process.send_signal(signal.SIGKILL)
    return {"learner": "learner-standby", "learner-standby": "learner"}[holder]


def disturb(job, points, rank=0):
    """Kill the learner that trains after each of these steps; a standby that has just begun is waited for."""
    for number, point in enumerate(points):
        job.limit_steps(min(point + 2, STEPS - 1))
        job.wait_until(lambda status, point=point: status.step >= point)
        heir = {"learner": "learner-standby", "learner-standby": "learner"}[
            read_holder(job.run_dir)
        ]
        job.wait_until(
            lambda _, heir=heir, number=number: job.log(heir).count("standing by") > number // 2
        )
        assert kill_the_one(job, rank) == heir
        job.wait_until(lambda _, heir=heir: read_holder(job.run_dir) == heir)
    job.limit_steps()


def test_a_learner_killed_again_and_again_changes_nothing(undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", overrides=[STANDBY], steps_max=0)

    disturb(job, (2, 5, 8))

    check_same(job, job.finish(), undisturbed)
    logs = job.log("learner") + job.log("learner-standby")
    assert logs.count("standby takes the learner's place") == 3
    assert logs.count("anchor restored") == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_of_two_is_replaced_with_its_whole_learner(rank, tmp_path):
    two = "learner.processesPerNode=2"
    alone = start_job(tmp_path / "alone" / "runs", overrides=[two]).finish()
    job = start_job(tmp_path / "runs", overrides=[STANDBY, two], steps_max=0)

    disturb(job, (2, 5), rank)

    check_same(job, job.finish(), alone)
    logs = job.log("learner") + job.log("learner-standby")
    assert logs.count("standby takes the learner's place") == 2 * 2  # each rank says it

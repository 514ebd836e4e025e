"""Processes that are lost, for a while or for good: the others wait, the status says for whom, and all goes on."""

from __future__ import annotations

import sqlite3
import time

import psutil
import pytest
from local_jobs import is_named, members, start_job
from ruins import blames, check_ledger, check_same

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

LEASE_SECONDS = 4.0
DOWN_SECONDS = 60.0
STALE = [
    "learner.processesPerNode=2",
    "numerics.mode=Fast",
    "train.maxStaleness=2",
    "train.maxSteps=16",
    "evaluations=[]",
]


def test_all_actors_are_lost_and_return(undisturbed, tmp_path):
    job = start_job(
        tmp_path / "runs",
        lease_seconds=LEASE_SECONDS,
        overrides=["actors.replicas=2"],
        slow_rewards=0.2,
    )
    job.wait_until(lambda status: status.step >= 3)
    for name in ("actor-0", "actor-1"):
        job.hold(name)
        job.kill(name)
    job.wait_until(lambda status: blames(status, "learner", "t/", "actor-", "silent for"))
    lost = job.wait_until(lambda status: not any(_alive(status, "actor")))
    for name in ("actor-0", "actor-1"):
        job.release(name)
    job.wait_until(lambda status: status.step > lost.step)
    job.slow_rewards(0)

    check_same(job, job.finish(), undisturbed)


def _alive(status, role):
    return [one.worker for one in status.workers if one.role == role and one.alive]


@pytest.mark.slow
def test_the_coordinator_is_away_for_a_minute(undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", lease_seconds=LEASE_SECONDS, plain=True, slow_rewards=0.2)
    job.wait_until(lambda status: status.step >= 3)
    job.hold("coordinator")
    job.kill("coordinator")
    time.sleep(DOWN_SECONDS)
    assert "the coordinator has not answered for" in job.said()
    assert "every worker waits for it" in job.said()
    job.release("coordinator")
    job.slow_rewards(0)
    result = job.finish()

    assert "actor-0 died" not in job.said()
    assert "learner died" not in job.said()
    check_same(job, result, undisturbed)


@pytest.mark.slow
def test_one_of_four_actors_is_lost_for_good(undisturbed, tmp_path):
    job = start_job(
        tmp_path / "runs",
        lease_seconds=LEASE_SECONDS,
        plain=True,
        overrides=["actors.replicas=4"],
        slow_rewards=0.2,
    )
    job.wait_until(lambda status: status.step >= 3 and "actor-3" in _alive(status, "actor"))
    job.hold("actor-3")
    job.kill("actor-3")
    gone = job.wait_until(lambda status: "actor-3" not in _alive(status, "actor"))

    assert gone.step < 12
    job.slow_rewards(0)
    check_same(job, job.finish(), undisturbed)


@pytest.mark.slow
def test_a_lost_rank_restarts_the_learners_alone_and_actors_go_on(tmp_path):
    job = start_job(
        tmp_path / "runs",
        overrides=STALE,
        lease_seconds=LEASE_SECONDS,
        plain=True,
        slow_rewards=0.4,
    )
    before = job.wait_until(lambda status: status.step >= 3)
    lost_at = time.time()
    find_rank(job, 1).kill()
    job.wait_until(lambda status: status.step > before.step + 1)
    status = job.wait_until(lambda status: _restarts(status, "learner") == 1)
    result = job.finish()

    assert result["step"] == 16
    assert _restarts(status, "actor-0") == 0
    assert "actor-0 died" not in job.said()
    assert "learner died" in job.said()
    with sqlite3.connect(f"file:{job.run_dir}/ledger.db?mode=ro", uri=True) as tx:
        done = tx.execute(
            "SELECT count(*) FROM attempts WHERE ending = 'accepted' AND ended_at > ? AND ended_at <"
            " (SELECT registered_at FROM workers WHERE worker = 'learner')",
            (lost_at,),
        ).fetchone()[0]
    assert done > 0
    check_ledger(job, staleness_max=2)


def find_rank(job, rank: int) -> psutil.Process:
    ranks = [one for one in members(job.run_dir) if is_named(one, "learner")]
    return next(one for one in ranks if one.environ().get("RANK") == str(rank))


def _restarts(status, name: str) -> int:
    return next((one.restarts for one in status.workers if one.worker == name), 0)

"""Whoever slept through its lease, or through its own replacement, writes nothing more: it leaves, or begins anew."""

from __future__ import annotations

import signal
import sqlite3
import time

import pytest
from local_jobs import start_job
from ruins import blames, check_same

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

LEASE_SECONDS = 4.0


def endings(job, ending: str) -> int:
    with sqlite3.connect(f"file:{job.run_dir}/ledger.db?mode=ro", uri=True) as tx:
        wanted = "SELECT count(*) FROM attempts WHERE ending = ?"
        return tx.execute(wanted, (ending,)).fetchone()[0]


@pytest.mark.slow
def test_a_learner_that_slept_through_its_replacement_leaves(undisturbed, tmp_path):
    """Quick: coordinator/test_a_replaced_process_does_not_end_its_successor.py, and freezes in simulation/."""
    job = start_job(tmp_path / "runs", lease_seconds=LEASE_SECONDS, slow_rewards=0.3)
    job.wait_until(lambda status: status.step >= 3)
    job.signal("learner", signal.SIGSTOP)
    asleep = job.wait_until(lambda status: blames(status, "run", "the learner is silent for"))
    with job.another("learner"):
        job.wait_until(lambda status: status.step > asleep.step)
        job.signal("learner", signal.SIGCONT)
        job.wait_until(lambda _: "is now at incarnation" in job.log("learner"))
        job.slow_rewards(0)
        result = job.finish()

    assert "learner died" in job.said()
    check_same(job, result, undisturbed)


@pytest.mark.slow
def test_an_actor_that_slept_through_its_replacement_leaves(undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", lease_seconds=LEASE_SECONDS, slow_rewards=0.3)
    job.wait_until(lambda status: status.step >= 3)
    job.signal("actor-0", signal.SIGSTOP)
    asleep = job.wait_until(lambda status: blames(status, "learner", "actor-0", "silent for"))
    with job.another("actor-0"):
        job.wait_until(lambda status: status.step > asleep.step)
        job.signal("actor-0", signal.SIGCONT)
        job.wait_until(lambda _: "fenced:" in job.log("actor-0"))
        job.slow_rewards(0)
        result = job.finish()

    assert "fenced: actor-0 is now at incarnation" in job.log("actor-0")
    check_same(job, result, undisturbed)


@pytest.mark.slow
def test_what_an_actor_held_when_it_fell_asleep_is_done_by_another(undisturbed, tmp_path):
    job = start_job(
        tmp_path / "runs",
        lease_seconds=LEASE_SECONDS,
        overrides=["actors.replicas=2"],
        slow_rewards=0.5,
    )
    holding = job.wait_until(
        lambda status: (
            status.step >= 3 and any(w.worker == "actor-0" and w.num_tasks for w in status.workers)
        )
    )
    job.signal("actor-0", signal.SIGSTOP)
    job.wait_until(lambda status: status.step > holding.step + 1)
    job.signal("actor-0", signal.SIGCONT)
    time.sleep(LEASE_SECONDS / 4)
    result = job.finish()

    assert endings(job, "expired") >= 1
    assert "actor-0 died" not in job.said()
    check_same(job, result, undisturbed)

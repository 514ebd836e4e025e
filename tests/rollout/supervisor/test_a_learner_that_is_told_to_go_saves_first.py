"""SIGTERM to a learner at work: with ``SnapshotIfTime`` nothing is replayed, with ``Drain`` all since the last anchor.

Either way the run ends with the chain of one that nobody disturbed.
"""

from __future__ import annotations

import re
import signal

import pytest
from local_jobs import start_job
from ruins import check_same

from rollout.ledger.sqlite.reader import LedgerReader

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

STARTED = re.compile(r"learner started incarnation=(\d+) committed=(\d+) anchor=(\S+)")


def tell_to_go(home, policy):
    """A run without anchors of its own, told to go in the middle: its end, and where the next learner began."""
    overrides = [f"snapshots.onPreemption={policy}", "snapshots.everySteps=50"]
    job = start_job(home, overrides=overrides, slow_rewards=0.3)
    job.wait_until(lambda status: status.step >= 4)
    job.signal("learner", signal.SIGTERM)
    job.wait_until(lambda status: len(STARTED.findall(job.log("coordinator"))) > 1)
    job.slow_rewards(0.0)
    result = job.finish()
    _, (incarnation, committed, anchor), *more = STARTED.findall(job.log("coordinator"))
    assert (incarnation, more) == ("2", [])
    saved = [one.step for one in LedgerReader(job.run_dir / "ledger.db").anchors()]
    return job, result, int(committed), anchor, saved


def test_where_there_is_time_its_state_is_saved_at_the_boundary(undisturbed, tmp_path):
    job, result, committed, anchor, saved = tell_to_go(tmp_path / "runs", "SnapshotIfTime")
    assert 4 <= committed < 12
    assert anchor == f"step-{committed:06d}"
    assert saved == [committed, 12]
    check_same(job, result, undisturbed)


@pytest.mark.slow
def test_with_drain_the_next_learner_replays(undisturbed, tmp_path):
    """Quick: coordinator/test_a_learner_is_told_to_go.py::test_with_drain_the_pod_is_not_held_up_and_the_others_work_on."""
    job, result, committed, anchor, saved = tell_to_go(tmp_path / "runs", "Drain")
    assert 4 <= committed < 12
    assert anchor == "None"
    assert saved == [12]
    check_same(job, result, undisturbed)

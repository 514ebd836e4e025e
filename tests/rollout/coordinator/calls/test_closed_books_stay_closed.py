"""A run that has ended gave every sample left over its end; a coordinator that starts later knows that."""

from __future__ import annotations

import sqlite3

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, run_to_end, wait_for_outcome
from plans import changed

CARRIED = changed(PLAN, waves_max=2, staleness_max=1, steps_max=3, num_tasks=40)


@pytest.fixture
def ended(bench):
    """A run whose last window was wider than its last step."""
    client = bench.start(CARRIED)
    learner = FakeLearner(client, bench.store)
    assert run_to_end(FakeActor(client), learner).stop == "Finished"
    learner.finish()
    assert wait_for_outcome(client).kind == "Succeeded"
    counted = client.status().dispositions
    bench.stop()
    assert counted["surplus"] > 0
    return counted


def test_the_status_counts_the_same_after_a_restart(bench, ended):
    assert bench.start(CARRIED).status().dispositions == {**ended, "pending": 0}


def test_a_coordinator_killed_before_it_wrote_the_outcome_ends_the_run_well(bench, ended):
    with sqlite3.connect(bench.folder / "ledger.db") as tx:
        tx.execute("UPDATE run SET outcome = NULL")
    client = bench.start(CARRIED)
    assert wait_for_outcome(client).kind == "Succeeded"
    assert client.status().dispositions == {**ended, "pending": 0}


@pytest.mark.parametrize("num_tasks", [40, 8])
def test_a_run_made_longer_goes_on_behind_what_was_closed(bench, ended, num_tasks):
    longer = changed(CARRIED, steps_max=5, num_tasks=num_tasks)
    client = bench.start(longer)
    learner = FakeLearner(client, bench.store)
    assert run_to_end(FakeActor(client), learner).stop == "Finished"
    learner.finish()
    assert wait_for_outcome(client).kind == "Succeeded"
    bench.stop()
    with bench.reader() as ledger:
        ends = ledger.dispositions()
        admitted = ledger._file.tx.execute("SELECT sum(num_samples) FROM tasks").fetchone()[0]
    assert ends.pop("pending") == 0
    assert sum(ends.values()) == admitted

"""A process that slept while another took its place wakes up, finds itself fenced, and says that it ends."""

from __future__ import annotations

import pytest
from coordinator_kit import FakeActor, FakeLearner

from rollout.errors import Fenced
from rollout.protocol import messages as m
from rollout.protocol import routes


@pytest.mark.parametrize("restarted", [False, True])
def test_the_end_of_a_replaced_actor_is_not_its_successors(bench, restarted):
    client = bench.start()
    FakeLearner(client, bench.store)
    old, new = FakeActor(client), FakeActor(client)
    if restarted:
        old.client = new.client = client = bench.start()
    with pytest.raises(Fenced):
        old.call(routes.ACTOR_OUTCOME, m.Outcome(ok=True))
    assert not new.claim().stop
    with bench.reader() as ledger:
        rows = ledger._file.tx.execute("SELECT outcome FROM workers WHERE worker = 'actor-0'")
        assert rows.fetchone()[0] is None


def test_the_end_of_a_replaced_learner_is_not_its_successors(bench):
    client = bench.start()
    old, new = FakeLearner(client, bench.store), FakeLearner(client, bench.store)
    with pytest.raises(Fenced):
        old.finish()
    assert [w.outcome for w in client.status().workers if w.role == "learner"] == [None]
    assert new.ask().stop is None


@pytest.mark.parametrize("asks", ["batch", "anchor"])
def test_a_replaced_learner_is_told_so_before_anything_else_by_a_coordinator_that_began_later(
    bench, asks
):
    client = bench.start()
    old, new = FakeLearner(client, bench.store), FakeLearner(client, bench.store)
    old.client = new.client = bench.start()
    with pytest.raises(Fenced, match="is now at incarnation 2"):
        old.ask() if asks == "batch" else old.anchor()
    assert new.ask().stop is None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_replaced_learner_cannot_fail_the_run(bench, restarted):
    client = bench.start()
    old, new = FakeLearner(client, bench.store), FakeLearner(client, bench.store)
    if restarted:
        old.client = new.client = client = bench.start()
    with pytest.raises(Fenced):
        old.call(routes.FAILED, m.Failed(kind="RunFailed", message="NaN"))
    assert client.status().outcome is None
    assert new.ask().stop is None
    new.call(routes.FAILED, m.Failed(kind="RunFailed", message="NaN"))
    assert client.status().outcome.reason == "RunFailed"

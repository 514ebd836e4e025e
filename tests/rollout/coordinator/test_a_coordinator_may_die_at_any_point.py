"""A coordinator that is replaced between any two calls, and workers that are replaced too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coordinator_kit import HELDOUT, PLAN, FakeActor, FakeLearner, run_to_end, wait_for_outcome
from plans import changed

from rollout.errors import CoordinatorError, LedgerRewound
from rollout.protocol import messages as m
from rollout.protocol import routes

LONG = changed(PLAN, steps_max=4, evaluations=(HELDOUT,))


class Script:
    """The same run, call by call; ``restart`` is asked before each call."""

    def __init__(self, bench, restart):
        self.bench, self.restart = bench, restart
        self.calls = 0
        self.client = bench.start(LONG)
        self.learner = FakeLearner(self.client, bench.store)
        self.actor = FakeActor(self.client)

    def next(self):
        """The workers outlive the coordinator: they go on with the client of its next life."""
        if self.restart(self.calls):
            self.client = self.bench.start(LONG)
            self.learner.client = self.actor.client = self.client
        self.calls += 1

    def run(self):
        while True:
            self.next()
            tasks = self.actor.claim().tasks
            if tasks:
                results = [self.actor.play(task) for task in tasks]
                self.next()
                assert all(self.actor.submit(*results).accepted)
            self.next()
            batch = self.learner.ask()
            if batch.stop is not None:
                break
            if batch.waiting is None:
                self.next()
                self.learner.commit(batch)
        self.next()
        self.learner.finish()
        while True:
            self.next()
            claimed = self.actor.claim(wait=0.5)
            if claimed.stop:
                return
            if claimed.tasks:
                self.actor.submit(*map(self.actor.play, claimed.tasks))

    def books(self):
        assert wait_for_outcome(self.client).kind == "Succeeded"
        self.bench.stop()
        with self.bench.reader() as ledger:
            steps = [(view.step, view.chain, view.version.digest) for view in ledger.steps()]
            samples = [view.trajectory_id for step, _, _ in steps for view in ledger.samples(step)]
            evaluations = [(e.name, e.step, e.summary["accuracy"]) for e in ledger.evaluations()]
            return steps, samples, evaluations, ledger.dispositions()


def test_the_books_are_the_same_wherever_it_died(tmp_path):
    from coordinator_kit import Bench

    def run(name, restart):
        folder = tmp_path / name
        folder.mkdir()
        bench = Bench(folder)
        script = Script(bench, restart)
        script.run()
        books = script.books()
        bench.close()
        return books, script.calls

    calm, calls = run("calm", lambda call: False)
    assert len(calm[1]) == 16
    assert calm[3] == {"consumed": 16, "pending": 0}
    for name, restart in (
        ("always", lambda call: True),
        ("thirds", lambda call: call % 3 == 0),
        ("once", lambda call: call == calls // 2),
    ):
        assert run(name, restart)[0] == calm, name


def test_a_learner_that_died_is_given_its_anchor_and_the_steps_after_it(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    seen = []
    for step in (1, 2):
        actor.work()
        batch = learner.ask()
        seen.append(batch)
        learner.commit(batch, plan={"order": [step]})
        if step == 1:
            learner.anchor()
    new = FakeLearner(client, bench.store)
    assert new.started.anchor.name == "step-000001"
    assert [(r.step, r.plan, r.chain) for r in new.started.replay] == [(2, {"order": [2]}, "c0-2")]
    again = new.call(routes.REPLAY, m.ReplayRequest(step=2))
    assert (again.ids, again.groups, again.cursor) == (
        seen[1].ids, seen[1].groups, seen[1].cursor,
    )  # fmt: skip
    assert new.started.replay[0].consumed == tuple(n for g in seen[1].ids for n in g)


def test_an_anchor_whose_objects_are_gone_is_not_offered(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    for _ in range(2):
        actor.work()
        learner.commit(learner.ask())
        learner.anchor()
    bench.store.delete(bench.store.put(b"o2"))
    assert FakeLearner(client, bench.store).started.anchor.name == "step-000001"


def test_a_learner_that_cannot_meet_its_past_opens_a_lineage_and_goes_on(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    for _ in range(2):
        actor.work()
        learner.commit(learner.ask())
    new = FakeLearner(client, bench.store)
    forked = new.call(
        routes.FORK,
        m.Fork(
            step=1,
            version=new.version(1, "other"),
            chain="c1-1",
            reason="digest differs",
        ),
    )
    new.lineage, new.step = forked.lineage, 1
    batch = new.ask()
    assert [group.ordinal for group in batch.groups] == [2, 3]
    new.commit(batch)
    assert run_to_end(actor, new).stop == "Finished"
    status = client.status()
    assert (status.lineage, status.step) == (1, 3)
    assert status.dispositions == {"consumed": 12, "pending": 0}
    with bench.reader() as ledger:
        assert [(view.lineage, view.chain) for view in ledger.steps()] == [
            (0, "c0-1"), (1, "c1-2"), (1, "c1-3"),
        ]  # fmt: skip


def test_a_dead_actor_loses_no_trajectory(bench):
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    dead = FakeActor(client, 0)
    kept, lost = dead.claim(tasks_max=1).tasks, dead.claim(tasks_max=1, held=("t/0",)).tasks
    dead.submit(*map(dead.play, kept))
    born = FakeActor(client, 0)
    again = born.claim().tasks
    assert [(t.task_id, t.attempt) for t in again] == [(lost[0].task_id, 2)]
    born.submit(*map(born.play, again))
    assert len(learner.ask().groups) == 2


def test_a_silent_actors_tasks_go_to_another_one(bench):
    client = bench.start(changed(PLAN, lease_seconds=0.4))
    learner = FakeLearner(client, bench.store)
    silent, other = FakeActor(client, 0), FakeActor(client, 1)
    task = silent.claim(tasks_max=1).tasks[0]
    other.work()
    taken = other.claim(wait=10.0).tasks
    assert [(t.task_id, t.attempt, t.epoch) for t in taken] == [(task.task_id, 2, 2)]
    other.submit(*map(other.play, taken))
    assert silent.submit(silent.play(task)).accepted == (False,)
    assert len(learner.ask().groups) == 2


def test_infrastructure_failures_are_retried_then_excluded_and_never_scored(bench):
    from rollout.ledger.records import Limits

    client = bench.start(limits=Limits(failures_max=2))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    for attempt in (1, 2):
        task = actor.claim(tasks_max=1).tasks[0]
        assert (task.ordinal, task.attempt) == (0, attempt)
        actor.fail(task)
    actor.work()
    batch = learner.ask()
    assert ([g.ordinal for g in batch.groups], batch.num_excluded) == ([1], 2)
    learner.commit(batch)
    assert client.status().dispositions == {"consumed": 2, "excluded": 2, "pending": 4}


def test_a_batch_that_lost_every_sample_ends_the_run_and_says_so(bench):
    from rollout.ledger.records import Limits

    client = bench.start(limits=Limits(failures_max=1))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    for task in actor.claim().tasks:
        actor.fail(task)
    assert learner.ask().stop == "AllSamplesLost"
    assert "every sample of step 1" in client.status().outcome.message


def test_user_code_that_fails_twice_ends_the_run_with_its_message(bench):
    client = bench.start()
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    for _ in range(2):
        actor.fail(actor.claim(tasks_max=1).tasks[0], "data")
    outcome = client.status().outcome
    assert (outcome.kind, outcome.reason) == ("Failed", "RewardError")
    assert "data trouble with t/0" in outcome.message
    assert actor.claim().stop

    client = bench.start(changed(PLAN, attempt=2))
    assert client.status().outcome is None
    assert FakeActor(client).claim().tasks[0].ordinal == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reward": float("nan")}, "not a finite number"),
        ({"ordinal": 9}, "ordinal 9"),
        ({"actor_logprobs": (-0.1,)}, "differ in length"),
        ({"spans": "old"}, "sampled from version"),
    ],
)
def test_a_malformed_trajectory_is_refused_with_the_reason(bench, change, reason):
    from rollout.types import VersionSpan

    client = bench.start()
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    if change.get("spans"):
        change = {"spans": (VersionSpan(start=0, end=2, lineage=0, step=7),)}
    result = actor.play(actor.claim(tasks_max=1).tasks[0])
    broken = replace(result.trajectories[0], **change)
    bad = result.__class__(
        task_id=result.task_id,
        epoch=result.epoch,
        trajectories=(broken, *result.trajectories[1:]),
    )
    refused = actor.submit(bad)
    assert refused.accepted == (False,)
    assert reason in refused.reasons[0]
    assert actor.submit(result).accepted == (True,)


def test_a_ledger_that_lost_acknowledged_writes_is_noticed(bench):
    import shutil

    client = bench.start()
    learner = FakeLearner(client, bench.store)
    actor = FakeActor(client)
    bench.stop()
    shutil.copy(bench.folder / "ledger.db", bench.folder / "old.db")
    client._transport = bench.start()._transport
    actor.work()
    learner.commit(learner.ask())
    bench.stop()
    shutil.copy(bench.folder / "old.db", bench.folder / "ledger.db")
    client._transport = bench.start()._transport
    with pytest.raises(LedgerRewound, match="acknowledged writes are gone"):
        actor.claim()


def test_a_client_gives_up_after_its_patience(bench):
    from rollout.protocol.client import CoordinatorClient

    client = CoordinatorClient.connect("http://127.0.0.1:9", "token", patience_seconds=0.2)
    with pytest.raises(CoordinatorError, match="no answer from the coordinator to /v1/status"):
        client.status()

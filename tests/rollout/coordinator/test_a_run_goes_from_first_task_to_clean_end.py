import json
from dataclasses import replace

import pytest
from coordinator_kit import HELDOUT, PLAN, FakeActor, FakeLearner, run_to_end, wait_for_outcome
from plans import changed

from rollout.errors import CoordinatorError, Fenced, NotStored
from rollout.protocol import messages as m
from rollout.protocol import routes


def test_a_synchronous_run_consumes_every_sample_in_order_and_succeeds(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    stop = run_to_end(actor, learner)
    assert stop.stop == "Finished"
    learner.finish()
    assert wait_for_outcome(client).kind == "Succeeded"
    assert actor.claim().stop
    status = client.status()
    assert (status.step, status.phase) == (3, "Succeeded")
    assert status.dispositions == {"consumed": 12, "pending": 0}
    with bench.reader() as ledger:
        ordinals = [view.trajectory.ordinal for step in (1, 2, 3) for view in ledger.samples(step)]
        assert ordinals == [n // 2 for n in range(12)]
        assert [view.chain for view in ledger.steps()] == ["c0-1", "c0-2", "c0-3"]
        assert ledger.dispositions() == {"consumed": 12, "pending": 0}


def test_nothing_can_be_sampled_before_a_version_is_published(bench):
    client = bench.start()
    actor = FakeActor(client)
    claimed = actor.claim()
    assert claimed.tasks == ()
    assert "publish" in claimed.reason
    FakeLearner(client, bench.store)
    assert {task.version.step for task in actor.claim().tasks} == {0}


def test_a_synchronous_run_admits_one_step_at_a_time(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    assert actor.work() == 2
    assert actor.work() == 0
    learner.commit(learner.ask())
    tasks = actor.claim().tasks
    assert [(task.ordinal, task.version.step) for task in tasks] == [(2, 1), (3, 1)]


def test_staleness_lets_actors_run_ahead_by_whole_steps_and_no_further(bench):
    client = bench.start(changed(PLAN, staleness_max=1, steps_max=9))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    assert [task.ordinal for task in actor.claim().tasks] == [0, 1, 2, 3]
    actor.submit(*map(actor.play, actor.claim().tasks))
    assert actor.work() == 0
    learner.commit(learner.ask())
    assert [(t.ordinal, t.version.step) for t in actor.claim().tasks] == [(4, 1), (5, 1)]
    for _ in range(3):
        batch = learner.ask()
        if batch.waiting:
            break
        ages = [batch.step - 1 - t.spans[0].step for g in batch.groups for t in g.trajectories]
        assert max(ages) <= 1
        learner.commit(batch)
    assert "t/4 is with actor-0" in learner.ask().waiting


def test_the_learner_is_told_whom_it_waits_for(bench):
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    assert learner.ask().waiting == "t/0 is not started: no actor is alive, 2 tasks missing"
    actor = FakeActor(client)
    actor.claim(tasks_max=1)
    assert learner.ask().waiting == "t/0 is with actor-0 (registered), try 1, 2 tasks missing"
    waiting = client.status().waiting
    assert [(item.who, item.culprit) for item in waiting] == [
        ("learner", "t/0 is with actor-0 (registered), try 1, 2 tasks missing")
    ]


def test_a_commit_must_name_exactly_its_batch(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    batch = learner.ask()
    whole = learner.build_commit(batch)
    for consumed in (whole.consumed[:-1], (*whole.consumed, whole.consumed[0]), ()):
        with pytest.raises(CoordinatorError, match="each to be named once"):
            learner.commit(batch, consumed=consumed)
    with pytest.raises(NotStored, match="store it again, then call again"):
        ghost = replace(whole.version, object="blake3:" + "f" * 64)
        learner.commit(batch, version=ghost)
    assert client.status().step == 0
    learner.commit(batch)
    learner.call(routes.COMMIT, whole)
    assert client.status().dispositions["consumed"] == 4


def test_a_learner_may_leave_samples_out_with_a_reason(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    batch = learner.ask()
    names = [name for group in batch.ids for name in group]
    learner.commit(batch, consumed=tuple(names[:-1]), filtered={names[-1]: "length"})
    assert client.status().dispositions == {"consumed": 3, "filtered": 1, "pending": 4}


def test_a_replaced_learner_is_fenced(bench):
    client = bench.start()
    actor, old = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    batch = old.ask()
    new = FakeLearner(client, bench.store)
    with pytest.raises(Fenced):
        old.commit(batch)
    new.commit(new.ask())


def test_evaluations_come_first_pin_their_version_and_choose_the_best(bench):
    report = replace(HELDOUT, name="final", split="report", selects=False, every_steps=None)
    client = bench.start(changed(PLAN, steps_max=4, evaluations=(HELDOUT, report)))
    good = {0: 0.0, 2: 1.0, 4: 0.5}

    def reward(task, sample):
        return good.get(task.version.step, 0.0) if task.kind == "eval" else float(sample)

    learner = FakeLearner(client, bench.store)
    actor = FakeActor(client, reward=reward)
    first = actor.claim(tasks_max=4).tasks
    assert [(t.kind, t.split, t.version.step) for t in first] == [
        ("eval", "report", 0), ("eval", "selection", 0),
        ("eval", "report", 0), ("eval", "selection", 0),
    ]  # fmt: skip
    assert first[0].noise_domain == "eval/final/0"
    actor.submit(*map(actor.play, first))
    run_to_end(actor, learner)
    learner.finish()
    while not actor.claim(wait=1.0).stop:
        actor.submit(*map(actor.play, actor.claim().tasks))
    assert wait_for_outcome(client).kind == "Succeeded"
    status = client.status()
    done = {(e.name, e.step): e.metrics["accuracy"]["value"] for e in status.evaluations}
    assert done == {
        ("heldout", 0): 0.0, ("heldout", 2): 1.0, ("heldout", 4): 0.5,
        ("final", 0): 0.0, ("final", 4): 0.5, ("final", 2): 1.0,
    }  # fmt: skip
    best = json.loads((bench.folder / "snapshots" / "Best.json").read_text())
    assert (best["step"], best["value"], best["metric"]) == (2, 1.0, "accuracy")
    assert bench.store.path(best["version"]["object"]).read_bytes() == b"weights of 0/2"
    latest = json.loads((bench.folder / "snapshots" / "Latest.json").read_text())
    assert latest["anchor"] == "step-000004"


def test_trackers_see_every_step_once_and_in_order_with_its_evaluations(bench):
    client = bench.start(changed(PLAN, evaluations=(HELDOUT,)))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    run_to_end(actor, learner)
    learner.finish()
    while not actor.claim(wait=1.0).stop:
        actor.submit(*map(actor.play, actor.claim().tasks))
    wait_for_outcome(client)
    assert [step for step, _ in bench.tracker.seen] == [0, 1, 2, 3]
    assert "eval/heldout/selection/accuracy/value" in bench.tracker.seen[2][1]
    assert "eval/heldout/selection/accuracy/value" not in bench.tracker.seen[1][1]


def test_only_versions_that_somebody_needs_keep_their_weights(bench):
    client = bench.start(changed(PLAN, steps_max=6, anchors_kept=1))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    while learner.step < 6:
        actor.work()
        learner.commit(learner.ask())
        if learner.step in {1, 2}:
            learner.anchor()
    learner.finish()
    wait_for_outcome(client)
    bench.stop()
    names = sorted(p.read_bytes() for p in (bench.folder / "objects/blake3").glob("*/*"))
    kept = [b"o6", b"weights of 0/0", b"weights of 0/5", b"weights of 0/6"]
    assert names == kept


def test_a_gate_that_fails_fails_the_run(bench):
    from rollout.coordinator.plan import Gate

    gated = replace(
        HELDOUT, at_start=False, every_steps=None,
        gate=Gate(metric="accuracy", lower_bound=0.9, fails=True),
    )  # fmt: skip
    client = bench.start(changed(PLAN, steps_max=1, evaluations=(gated,)))
    learner = FakeLearner(client, bench.store)
    actor = FakeActor(client, reward=lambda task, sample: 0.5 if task.kind == "eval" else 1.0)
    run_to_end(actor, learner)
    actor.work()
    learner.finish()
    outcome = wait_for_outcome(client)
    assert (outcome.kind, outcome.reason) == ("Failed", "GateFailed")
    assert "0.5, the gate wants 0.9" in outcome.message


def test_an_offline_run_hands_out_rows_and_needs_no_actor(bench):
    client = bench.start(changed(PLAN, offline=True, num_tasks=7, short_tail=True, steps_max=None))
    learner = FakeLearner(client, bench.store)
    seen = []
    while True:
        batch = learner.ask()
        if batch.stop:
            break
        seen.append([row.ordinal for row in batch.rows])
        learner.commit(batch)
    assert seen == [[0, 1], [2, 3], [4, 5], [6]]
    again = learner.call(routes.REPLAY, m.ReplayRequest(step=4))
    assert (again.rows[0].row["answer"], again.ids) == ("12", (("r/6",),))
    learner.finish()
    assert wait_for_outcome(client).kind == "Succeeded"
    assert client.status().dispositions == {"consumed": 7, "pending": 0}


def test_a_stopped_run_ends_when_its_workers_have_and_goes_on_later(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    learner.commit(learner.ask())
    client.call(routes.STOP, m.Stop(reason="interrupted"))
    assert learner.ask().stop == "interrupted"
    assert actor.claim().stop
    assert client.status().phase == "Stopping"
    learner.finish()
    actor.call(routes.ACTOR_OUTCOME, m.Outcome(ok=True))
    assert wait_for_outcome(client).kind == "Stopped"

    client = bench.start(changed(PLAN, attempt=2))
    assert client.status().outcome is None
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    assert (learner.started.committed_step, learner.started.anchor.name) == (1, "step-000001")
    assert run_to_end(actor, learner).stop == "Finished"

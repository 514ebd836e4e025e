import threading
from dataclasses import replace

import pytest
from coordinator_kit import (
    PLAN,
    FakeActor,
    FakeLearner,
    HttpServer,
    Recorder,
    run_to_end,
    wait_for_outcome,
)
from plans import changed

from cluster.control.ports import find_free_port
from rollout.coordinator.settings import StepsResolver
from rollout.errors import CoordinatorError, DataError, LedgerFull
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient


def fill_disk(bench):
    """No page more than there is; gives a function that makes room again."""
    connection = bench.coordinator.run.ledger._writer._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    return lambda: connection.execute("PRAGMA max_page_count = 1000000")


def heavy_results(actor):
    tasks = actor.claim().tasks
    return [
        replace_text(actor.play(task), "x" * 200_000, number) for number, task in enumerate(tasks)
    ]


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    learner.commit(learner.ask())
    results = heavy_results(actor)
    make_room = fill_disk(bench)
    with pytest.raises(LedgerFull, match="free space"):
        actor.submit(*results)
    status = client.status()
    assert status.outcome is None
    (waiting,) = [one for one in status.waiting if one.what == "room for the ledger"]
    assert "free space" in waiting.culprit
    make_room()
    assert all(actor.submit(*results).accepted)
    assert run_to_end(actor, learner).stop == "Finished"
    assert not [one for one in client.status().waiting if one.what == "room for the ledger"]


def test_a_disk_that_stays_full_ends_the_run_and_it_goes_on_later(bench):
    client = bench.start(changed(PLAN, full_seconds=0.0))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    learner.commit(learner.ask())
    results = heavy_results(actor)
    fill_disk(bench)
    for _ in range(2):
        with pytest.raises(LedgerFull, match="free space"):
            actor.submit(*results)
    outcome = client.status().outcome
    assert (outcome.kind, outcome.reason) == ("Failed", "LedgerFull")
    assert learner.ask().stop == "LedgerFull"

    client = bench.start(changed(PLAN, attempt=2))
    assert client.status().step == 1
    assert run_to_end(FakeActor(client), FakeLearner(client, bench.store)).stop == "Finished"


def test_workers_wait_for_room_on_the_coordinators_disk(bench):
    server = HttpServer(bench, "secret")
    bench.coordinator = server.coordinator
    actor = FakeActor(
        CoordinatorClient.connect(server.url, token_for("secret", "actor"), patience_seconds=0.5)
    )
    FakeLearner(CoordinatorClient.connect(server.url, token_for("secret", "learner")), bench.store)
    results = heavy_results(actor)

    async def fill():
        return fill_disk(bench)

    make_room = server._do(fill())
    later = threading.Timer(1.5, make_room)
    later.start()
    assert all(actor.submit(*results).accepted)
    later.join()
    server.close()


def replace_text(result, text, number):
    import random

    draw = random.Random(number)
    noise = "".join(chr(draw.randrange(32, 0x2FFF)) for _ in text)
    made = tuple(replace(t, text=noise) for t in result.trajectories)
    return result.__class__(task_id=result.task_id, epoch=result.epoch, trajectories=made)


def test_broken_data_in_the_middle_ends_the_run_with_the_line(bench, monkeypatch):
    client = bench.start()
    FakeLearner(client, bench.store)
    actor = FakeActor(client)

    def broken(ordinals):
        raise DataError("train.jsonl line 17: expected an object")

    monkeypatch.setattr(bench.coordinator.run.rows._source, "train", broken)
    with pytest.raises(DataError, match="line 17"):
        actor.claim()
    assert client.status().outcome.reason == "DataError"


def test_a_tracker_that_fails_is_seen_and_does_not_stop_the_run(bench, monkeypatch):
    def down(step, metrics):
        raise ConnectionError("wandb is unreachable")

    monkeypatch.setattr(bench.tracker, "log", down)
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    run_to_end(actor, learner)
    learner.finish()
    assert wait_for_outcome(client).kind == "Succeeded"
    tracking = [c for c in client.status().conditions if c.type == "Tracking"]
    assert "wandb is unreachable" in tracking[0].message


def test_a_tracker_that_recovers_is_in_the_status_no_more(bench):
    took, trouble = bench.tracker.log, {"FollowingRecorder": "the queue is gone"}

    def down_at_first(step, metrics):
        if step == 0:
            raise ConnectionError("wandb is unreachable")
        took(step, metrics)

    class FollowingRecorder(Recorder):
        @property
        def trouble(self):
            return trouble["FollowingRecorder"]

    bench.tracker.log = down_at_first
    resolver = StepsResolver(begun=PLAN, opened=[bench.tracker, FollowingRecorder()])
    client = bench.start(resolver=resolver)
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    seen = wait_for_trouble(client, "wandb is unreachable")
    assert "the queue is gone" in seen
    run_to_end(actor, learner)
    learner.finish()
    wait_for_outcome(client)
    (tracking,) = [c for c in client.status().conditions if c.type == "Tracking"]
    assert tracking.message == "the queue is gone"
    trouble["FollowingRecorder"] = ""
    assert not [c for c in client.status().conditions if c.type == "Tracking"]


def wait_for_trouble(client, words):
    """What the status says of trackers, once it has ``words``."""
    while True:
        found = [c.message for c in client.status().conditions if c.type == "Tracking"]
        if found and words in found[0]:
            return found[0]


def test_a_bug_is_answered_counted_and_survived(bench, monkeypatch):
    client = bench.start()
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    with monkeypatch.context() as patch:
        patch.setattr(bench.coordinator.run.state, "groups", None)
        with pytest.raises(CoordinatorError, match="internal error"):
            actor.claim()
    assert bench.coordinator.unexpected_errors == 1
    assert actor.work() == 2


def test_workers_wait_through_an_orderly_restart(bench):
    """A closing coordinator tells nobody to end: 503, and the client comes back to the next life."""
    port = find_free_port()
    first = HttpServer(bench, "secret", port=port)
    actor = FakeActor(CoordinatorClient.connect(first.url, token_for("secret", "actor")))
    learner_client = CoordinatorClient.connect(first.url, token_for("secret", "learner"))
    worked = []
    claiming = threading.Thread(target=lambda: worked.append(actor.work(wait=20.0)))
    claiming.start()
    first.close()
    second = HttpServer(bench, "secret", port=port)
    FakeLearner(learner_client, bench.store)
    claiming.join(60.0)
    second.close()
    assert worked == [2]


def test_dynamic_sampling_accounts_for_every_sample(bench):
    plan = changed(PLAN, waves_max=3, steps_max=4)
    client = bench.start(plan)
    learner = FakeLearner(client, bench.store)
    actor = FakeActor(
        client, reward=lambda task, sample: float(sample) if task.ordinal % 3 == 0 else 0.5
    )
    stop = run_to_end(actor, learner)
    learner.finish()
    assert stop.stop == "Finished"
    wait_for_outcome(client)
    bench.stop()
    with bench.reader() as ledger:
        ends = ledger.dispositions()
        kept = [v.trajectory.ordinal for s in range(1, 5) for v in ledger.samples(s)][::2]
        admitted = ledger._file.tx.execute("SELECT sum(num_samples) FROM tasks").fetchone()[0]
    assert ends.pop("pending") == 0
    assert sum(ends.values()) == admitted
    assert ends["filtered"] > 0
    assert all(ordinal % 3 == 0 for ordinal in kept)
    assert kept == sorted(kept)


@pytest.mark.parametrize("when", ["before the commit", "after it"])
def test_a_missing_sample_expires_where_time_may_have_a_say(bench, when):
    plan = changed(PLAN, exact=False, sample_wait_seconds=0.05)
    client = bench.start(plan)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    task = actor.claim(tasks_max=1).tasks[0]
    other = FakeActor(client, 1)
    other.work()
    batch = learner.ask(wait=5.0)
    while batch.waiting:
        batch = learner.ask(wait=5.0)
    assert [group.ordinal for group in batch.groups] == [1]
    if when == "before the commit":
        assert actor.submit(actor.play(task)).accepted == (False,)
    client = bench.start(plan)
    learner.client = actor.client = client
    learner.commit(batch)
    assert client.status().dispositions == {"consumed": 2, "expired": 2, "pending": 4}
    assert actor.submit(actor.play(task)).accepted == (False,)


def test_what_dynamic_sampling_lost_to_time_is_made_good(bench):
    """Nobody submits anything after the deadline: the refill must not wait for that."""
    plan = changed(PLAN, exact=False, sample_wait_seconds=0.05, waves_max=2, num_tasks=40)
    client = bench.start(plan)
    learner, lost, other = FakeLearner(client, bench.store), FakeActor(client), FakeActor(client, 1)
    lost.claim(tasks_max=1)
    other.work()
    batch = learner.ask()
    for _ in range(20):
        if batch.waiting is None:
            break
        batch = learner.ask(wait=0.1)
        other.work()
    assert [group.ordinal for group in batch.groups] == [1, 2]
    learner.commit(batch)
    assert client.status().dispositions["expired"] == 2


def test_an_offline_commit_must_name_its_rows(bench):
    client = bench.start(changed(PLAN, offline=True, num_tasks=4))
    learner = FakeLearner(client, bench.store)
    batch = learner.ask()
    for consumed in (("r/0",), ("r/0", "r/0"), ("r/0", "r/9")):
        with pytest.raises(CoordinatorError, match="each to be named once"):
            learner.commit(batch, consumed=consumed)

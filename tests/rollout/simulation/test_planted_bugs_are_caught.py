"""The checks bite: take a rule away, and some seed says which promise went with it.

Where a search begins is where it ended the last time; it goes on from there when seeds change their meaning.
"""

from __future__ import annotations

import asyncio

from plans import changed
from scenario import LATE_FIRST, stopped_as_it_comes_back
from simulate import run_scenario, simulate

from rollout.coordinator.calls import actors, admission, batches, commits, learner
from rollout.coordinator.calls.registry import HANDLERS
from rollout.coordinator.duties import retention
from rollout.coordinator.rules import batch_selection
from rollout.ledger.sql import removing, steps, submitting, tasks
from rollout.protocol.routes import START


def first_broken(seeds):
    for seed in seeds:
        report = simulate(seed)
        if report.broken:
            return report
    return None


def consume_at_any_age(monkeypatch):
    """The last look at ages, where a batch is decided, would hide what let groups become too old."""
    for module in (commits, admission):
        monkeypatch.setattr(module, "expire_old", lambda plan, step, window: window)


def test_without_fencing_a_late_result_is_found(monkeypatch):
    monkeypatch.setattr(submitting, "_repeated", accept_late)
    report = first_broken([*range(64, 100), *range(64)])
    assert report is not None
    assert any("epoch" in text for text in report.broken), report.broken


def accept_late(tx, row, end):
    """An attempt that was taken over ends well after all."""
    if end.failure is None and row.state == "leased":
        submitting._accept(tx, [end])
        tx.execute(
            "UPDATE attempts SET ending = 'accepted' WHERE task_id = ? AND epoch = ?",
            (end.task_id, end.epoch),
        )
        return submitting.Verdict(accepted=True, reason="", state="done")
    return submitting.Verdict(accepted=True, reason="", state=row.state)


def hear_anybody(run, sender, role):
    worker, incarnation = sender.worker, sender.incarnation
    known = run.state.workers.setdefault(
        worker, actors.Worker(name=worker, role=role, incarnation=incarnation, seen_at=0.0)
    )
    known.seen_at = run.clock()
    return known


def test_a_disposition_that_is_counted_twice_is_found(monkeypatch):
    mirror = commits._mirror

    def twice(run, ask, taken, dispositions):
        mirror(run, ask, taken, dispositions)
        run.state.dispositions["consumed"] += 1

    monkeypatch.setattr(commits, "_mirror", twice)
    report = first_broken(range(10))
    assert report is not None
    assert any("the status counts" in text for text in report.broken), report.broken


def test_a_sample_that_is_left_without_a_disposition_is_found(monkeypatch):
    dispose = commits._dispose
    monkeypatch.setattr(
        commits,
        "_dispose",
        lambda run, ask: tuple(one for one in dispose(run, ask) if one.kind != "filtered"),
    )
    report = first_broken(range(40))
    assert report is not None
    assert any("samples ended" in text for text in report.broken), report.broken


def test_leases_that_are_not_armed_again_are_found(monkeypatch):
    monkeypatch.setattr(tasks, "rearm", lambda tx, lease_seconds: 0)
    report = first_broken([*range(78, 140), *range(78)])
    assert report is not None
    assert any("came back" in text for text in report.broken), report.broken


def test_tasks_that_enter_too_early_are_found(monkeypatch):
    consume_at_any_age(monkeypatch)
    end = batch_selection.window_end
    monkeypatch.setattr(
        "rollout.coordinator.calls.admission.window_end",
        lambda plan, cursor, window: end(
            changed(plan, staleness_max=plan.train.staleness_max + 1), cursor, window
        ),
    )
    report = first_broken(range(40))
    assert report is not None
    assert any("sampled from" in text for text in report.broken), report.broken


def test_samples_that_are_given_up_in_memory_only_are_found(monkeypatch):
    """As it was: the ledger takes their results, and ages are not looked at again."""
    monkeypatch.setattr(tasks, "expire", lambda tx, task_ids: tuple(task_ids))
    consume_at_any_age(monkeypatch)
    report = first_broken([*range(LATE_FIRST + 5, LATE_FIRST + 60)])
    assert report is not None
    assert any("sampled from" in text for text in report.broken), report.broken


def test_heartbeats_that_end_with_the_first_refusal_are_found(monkeypatch):
    async def unwatched(work, duties):
        """As it was: nobody looks at what became of a duty."""
        beside = [asyncio.ensure_future(duty()) for duty in duties.values()]
        try:
            return await work
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    monkeypatch.setattr("rollout.actor.loop.work_beside", unwatched)
    report = first_broken([*range(LATE_FIRST + 9, LATE_FIRST + 60)])
    assert report is not None
    assert any("has not beaten" in text for text in report.broken), report.broken


def test_attempts_that_a_fork_finds_still_under_way_are_found(monkeypatch):
    """As it was: a task that is given up, opened again and made leaves two attempts that were accepted."""
    for module in (steps, tasks):
        monkeypatch.setattr(module, "give_up_attempts", lambda tx, task_ids: None)
    report = first_broken([*range(LATE_FIRST + 5, LATE_FIRST + 60)])
    assert report is not None
    assert any("attempts were accepted" in text for text in report.broken), report.broken


def test_an_order_to_stop_that_a_fork_forgets_is_found(monkeypatch):
    """As it was: the picture that a fork builds anew has no order in it."""
    reload = learner.reload_state

    async def forget(run):
        await reload(run)
        run.state.stopping = None

    monkeypatch.setattr(learner, "reload_state", forget)
    reports = (
        run_scenario(stopped_as_it_comes_back(seed)) for seed in [*range(16, 40), *range(16)]
    )
    assert any("after an order to stop" in text for one in reports for text in one.broken)


def test_steps_of_a_fork_that_trackers_do_not_hear_of_are_found(monkeypatch):
    """As it was: a picture that is built anew believes that trackers know the steps of the dead chain."""
    reload = learner.reload_state

    async def believe(run):
        known = run.state.tracked_step
        await reload(run)
        run.state.tracked_step = known

    monkeypatch.setattr(learner, "reload_state", believe)
    report = first_broken([*range(LATE_FIRST + 13, LATE_FIRST + 60)])
    assert report is not None
    assert any("a tracker last heard" in text for text in report.broken), report.broken


def test_what_an_anchor_names_and_is_collected_all_the_same_is_found(monkeypatch):
    monkeypatch.setattr(retention, "objects_of", lambda anchors: set())
    report = first_broken(range(1, 40))
    assert report is not None
    assert any("has lost" in text for text in report.broken), report.broken


def test_a_learner_that_is_not_fenced_is_found(monkeypatch):
    monkeypatch.setattr(steps, "check_incarnation", lambda tx, worker, incarnation: None)
    for module in (batches, commits, learner):
        monkeypatch.setattr(module, "record_heartbeat", hear_anybody)
    report = first_broken(range(100))
    assert report is not None
    assert any("replaced" in text or "acknowledged" in text for text in report.broken)


def test_a_notice_that_outlives_its_learner_is_found(monkeypatch):
    start = HANDLERS[START.path]

    async def remember(run, sender, ask):
        until = run.learner_until
        answer = await start(run, sender, ask)
        run.learner_until = until
        return answer

    monkeypatch.setitem(HANDLERS, START.path, remember)
    report = first_broken([*range(46, 60), *range(46)])
    assert report is not None
    assert any("not ended" in text and "told to go" in text for text in report.broken)


def test_bodies_that_go_before_the_oldest_snapshot_can_do_without_are_found(monkeypatch):
    monkeypatch.setattr(retention, "plan_body_removal", remove_to_the_newest)
    monkeypatch.setattr(removing, "check_free", lambda tx, step, what: None)
    report = first_broken(range(40))
    assert report is not None


def remove_to_the_newest(anchors, steps_behind):
    return anchors[-1].step + 1 if anchors and steps_behind is not None else None

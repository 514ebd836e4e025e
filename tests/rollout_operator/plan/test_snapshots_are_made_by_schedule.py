"""Snapshots of schedules: each due one once and in time, one at a time, what is missed once, and old ones deleted."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import SPEC, World

from rollout_api.conditions import Reason
from rollout_api.names import scheduled_name
from rollout_operator.run.plan.model import Blocked

BUCKET = {"storage": {"uri": "s3://b/runs"}}
NIGHTLY = {"name": "nightly", "cron": "0 2 * * *"}
HUNDREDS = {"name": "hundreds", "everySteps": 100}


def running(*schedules, **spec):
    wanted = {"everySteps": 20, "schedules": list(schedules)}
    world = World(spec={**SPEC, **BUCKET, "snapshots": wanted, **spec})
    world.settle()
    world.anchor(20)
    world.settle(2)
    return world


def go_to(world, hours, days=1):
    """The hour of a day after the first."""
    world.now = datetime(2026, 1, days, tzinfo=UTC) + timedelta(hours=hours)
    world.settle(3)


def name(schedule, mark):
    return scheduled_name("run", "uid-0001", schedule, mark)


def of_time(text):
    minutes = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) // 60
    return name("nightly", minutes)


def told(world, schedule="nightly"):
    return next(one for one in world.status["schedules"] if one["name"] == schedule)


def test_a_snapshot_is_made_at_its_time_and_no_sooner():
    world = running(NIGHTLY)
    go_to(world, 1.9)
    assert not world.snapshots
    assert world.message("SnapshotsScheduled") == "nightly: next at 2026-01-01T02:00:00Z"
    assert world.plan().requeue_seconds <= 400
    go_to(world, 2.0)
    assert list(world.snapshots) == [of_time("2026-01-01T02:00")]
    assert told(world)["lastTime"] == "2026-01-01T02:00:00Z"
    assert told(world)["lastSnapshot"] == of_time("2026-01-01T02:00")
    assert world.condition("SnapshotsScheduled") == ("True", "Scheduled")


def test_a_snapshot_is_made_of_the_first_anchor_at_or_past_its_step():
    world = running(HUNDREDS)
    for step in (40, 80, 120, 140):
        world.anchor(step)
        world.settle(2)
    assert list(world.snapshots) == [name("hundreds", 100)]
    assert told(world, "hundreds")["lastStep"] == 100


def test_a_schedule_that_is_added_to_a_live_run_begins_there():
    world = running()
    world.anchor(460)
    go_to(world, 3.0, days=9)
    snapshots = {"everySteps": 20, "schedules": [NIGHTLY, HUNDREDS]}
    world.change(snapshots=snapshots)
    world.settle(3)
    assert not world.snapshots
    world.anchor(500)
    go_to(world, 2.0, days=10)
    assert list(world.snapshots) == [of_time("2026-01-10T02:00"), name("hundreds", 500)]


def test_what_was_missed_is_made_up_for_once():
    world = running(NIGHTLY, HUNDREDS)
    world.anchor(760)
    go_to(world, 9.0, days=12)
    assert list(world.snapshots) == [of_time("2026-01-12T02:00"), name("hundreds", 700)]
    world.finish()
    world.settle(3)
    assert len(world.snapshots) == 2


def test_what_is_too_late_is_left_out():
    world = running({**NIGHTLY, "startingDeadlineSeconds": 3600})
    go_to(world, 3.5)
    assert not world.snapshots
    go_to(world, 2.5, days=2)
    assert list(world.snapshots) == [of_time("2026-01-02T02:00")]


def test_one_at_a_time_and_the_newest_that_was_due_meanwhile():
    world = running(HUNDREDS)
    for step in (100, 200, 300):
        world.anchor(step)
        world.settle(2)
    assert list(world.snapshots) == [name("hundreds", 100)]
    assert world.message("SnapshotsScheduled") == "hundreds: waits for the one before"
    world.finish()
    world.settle(2)
    assert list(world.snapshots) == [name("hundreds", 100), name("hundreds", 300)]


def test_without_an_anchor_there_is_nothing_to_save():
    world = running(NIGHTLY)
    world.status.pop("lastSnapshot")
    world.report(step=3, attempt=1)
    go_to(world, 2.0)
    assert not world.snapshots
    world.anchor(20)
    world.settle(2)
    assert len(world.snapshots) == 1


def test_a_suspended_run_makes_none_and_one_when_it_goes_on():
    world = running(NIGHTLY)
    world.change(suspend=True)
    go_to(world, 0.0, days=5)
    assert not world.snapshots
    world.change(suspend=False)
    world.settle(8)
    assert list(world.snapshots) == [of_time("2026-01-04T02:00")]


def test_older_ones_than_are_kept_are_deleted_and_the_newest_failure_stays():
    world = running({**HUNDREDS, "keepLast": 2})
    for step in range(100, 900, 100):
        world.anchor(step)
        world.settle(2)
        world.finish("Failed" if step in (300, 400) else "Complete", "DeadlineExceeded: late")
        world.settle(2)
    assert list(world.snapshots) == [name("hundreds", step) for step in (400, 700, 800)]
    world.report(step=801, attempt=1, outcome={"kind": "Succeeded", "reason": "Done"})
    world.snapshots[name("hundreds", 900)] = replace(
        world.snapshots[name("hundreds", 800)], name=name("hundreds", 900)
    )
    world.settle()
    assert list(world.snapshots) == [name("hundreds", step) for step in (400, 800, 900)]


def test_one_that_a_person_keeps_is_neither_counted_nor_deleted():
    world = running({**HUNDREDS, "keepLast": 1})
    for step in (100, 200, 300):
        world.anchor(step)
        world.settle(2)
        world.finish()
        first = name("hundreds", 100)
        world.snapshots[first] = replace(world.snapshots[first], retained=True)
        world.settle(2)
    assert list(world.snapshots) == [name("hundreds", 100), name("hundreds", 300)]


def test_one_that_was_deleted_is_not_made_again():
    world = running(HUNDREDS)
    world.anchor(100)
    world.settle(2)
    world.snapshots.clear()
    world.settle(3)
    assert not world.snapshots


def test_snapshots_of_a_schedule_that_is_no_more_stay():
    world = running({**HUNDREDS, "keepLast": 1})
    for step in (100, 200):
        world.anchor(step)
        world.settle(1)
        world.finish()
    world.change(snapshots={"everySteps": 20})
    world.settle(3)
    assert len(world.snapshots) == 2
    assert "schedules" not in world.status
    assert world.condition("SnapshotsScheduled") is None


def test_the_last_failure_is_told_until_one_is_complete():
    world = running(HUNDREDS)
    world.anchor(100)
    world.settle(2)
    world.finish("Failed", "DeadlineExceeded: not durable within 3600 s")
    world.settle(1)
    assert world.condition("SnapshotsScheduled") == ("False", "SnapshotFailed")
    said = f"hundreds: snapshot {name('hundreds', 100)} has failed: DeadlineExceeded: not durable"
    assert world.message("SnapshotsScheduled").startswith(said)
    world.anchor(200)
    world.settle(2)
    world.finish()
    world.settle(1)
    assert world.condition("SnapshotsScheduled") == ("True", "Scheduled")


def test_what_cannot_be_made_is_told_and_the_run_goes_on():
    world = running(HUNDREDS)
    world.anchor(100)
    world.unsaved = Blocked(reason=Reason.FORBIDDEN, message="may not create", retry_seconds=30.0)
    plan = world.tick()
    assert plan.makes == plan.drops == ()
    assert plan.requeue_seconds <= 30
    assert world.condition("SnapshotsScheduled") == ("False", "Forbidden")
    assert world.condition("Ready") == ("True", "Running")
    assert told(world, "hundreds")["lastStep"] == 0
    world.unsaved = None
    world.settle(2)
    assert list(world.snapshots) == [name("hundreds", 100)]


def test_a_run_on_a_volume_that_goes_on_is_told_that_its_schedule_makes_nothing():
    world = running(HUNDREDS, storage={})
    world.anchor(100)
    world.settle(2)
    assert not world.snapshots
    assert world.condition("SnapshotsScheduled") == ("False", "NotSupported")
    assert "storage.uri" in world.message("SnapshotsScheduled")


def with_best(world, step, newest):
    best = {"name": f"step-{step:06d}", "step": step, "metric": "accuracy", "value": "0.5"}
    world.anchor(newest, best=best)
    world.settle(2)


def best_of(**spec):
    world = World(spec={**SPEC, **BUCKET, "snapshots": {"everySteps": 20, "best": True, **spec}})
    world.settle()
    return world


def test_each_version_that_is_the_best_is_saved_as_of_its_own_step_and_the_newest_is_kept():
    world = best_of()
    with_best(world, 0, 20)
    with_best(world, 40, 20)
    assert not world.snapshots
    with_best(world, 40, 60)
    assert list(world.snapshots) == [name("best", 40)]
    assert told(world, "best")["lastStep"] == 40
    world.finish()
    with_best(world, 40, 80)
    with_best(world, 80, 100)
    world.finish()
    world.settle(2)
    assert list(world.snapshots) == [name("best", 80)]
    assert world.message("SnapshotsScheduled") == "best: waits for a better version"


def test_the_order_names_the_step_of_the_best():
    world = best_of()
    with_best(world, 0, 20)
    world.anchor(60, best={"name": "step-000040", "step": 40})
    (order,) = world.plan().makes
    assert (order.step, order.schedule) == (40, "best")


def test_a_run_ends_once_its_best_version_and_its_last_one_are_saved():
    world = best_of(atEnd=True)
    with_best(world, 0, 20)
    done = {"kind": "Succeeded", "reason": "Done", "message": "m"}
    world.anchor(400, best={"name": "step-000400", "step": 400}, outcome=done)
    world.settle(3)
    assert list(world.snapshots) == [name("best", 400)]
    assert world.condition("Ready") == ("False", "Saving")
    world.finish("Failed", "StorageUnreachable: gone")
    world.settle(3)
    assert list(world.snapshots) == [name("best", 400), name("end", 1)]
    world.finish()
    world.settle(6)
    assert world.condition("Finished") == ("True", "Succeeded")
    assert world.condition("SnapshotsScheduled") == ("False", "SnapshotFailed")
    assert world.message("SnapshotsScheduled").startswith(f"best: snapshot {name('best', 400)}")
    assert {one["name"] for one in world.status["schedules"]} == {"best", "end"}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["anchor", "hours", "finish", "fail", "die", "suspend", "resume"]),
            st.integers(1, 60),
        ),
        max_size=25,
    )
)
def test_whoever_dies_between_any_two_writes_no_snapshot_is_made_twice_and_few_are_kept(course):
    """``World.apply`` refuses a name that is there; an operator that died has not written its status."""
    world = running({**NIGHTLY, "keepLast": 2}, {**HUNDREDS, "keepLast": 1})
    made, step = [], 20
    for what, amount in course:
        status = what != "die"
        if what == "anchor":
            step += 20 * amount
        elif what == "hours":
            world.now += timedelta(hours=amount)
        elif what in ("finish", "fail"):
            world.finish("Complete" if what == "finish" else "Failed")
        elif what in ("suspend", "resume"):
            world.change(suspend=what == "suspend")
        if world.status.get("progress"):
            world.anchor(step)
        made += [one.name for one in world.tick(status=status).makes]
        world.tick()
        for schedule, most in (("nightly", 2), ("hundreds", 1)):
            mine = [one for one in world.snapshots.values() if one.schedule == schedule]
            assert sum(one.state == "Active" for one in mine) <= 1
            assert sum(one.state == "Complete" for one in mine) <= most + 1
    assert len(set(made)) == len(made)

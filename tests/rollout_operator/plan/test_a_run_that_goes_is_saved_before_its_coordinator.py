"""A run that is suspended, or ends well, makes a last snapshot while its coordinator is there: one each time, within a bound that is told."""

from dataclasses import replace

import pytest
from worlds import SPEC, World

from rollout_api.conditions import Reason
from rollout_api.names import scheduled_name
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.saving.schedules import KEPT, PARTING_SECONDS

DONE = {"kind": "Succeeded", "reason": "Done", "message": "all steps"}


def running(**spec):
    asked = {"everySteps": 20, "onSuspend": True, "atEnd": True}
    wanted = {**SPEC, "storage": {"uri": "s3://b/runs"}, "snapshots": asked, **spec}
    world = World(spec=wanted)
    world.settle()
    world.anchor(20)
    world.settle(2)
    return world


def suspended(**spec):
    """The cut is made, and the workers are gone."""
    world = running(**spec)
    world.change(suspend=True)
    world.tick(5)
    world.anchor(21, outcome={"kind": "Stopped", "reason": "Suspended", "message": "m"})
    for _ in range(4):
        world.tick(5)
    return world


def name(kind, attempt=1):
    return scheduled_name("run", "uid-0001", kind, attempt)


def roles(world):
    return {pod.role for pod in world.pods.values()}


def test_a_suspended_run_is_saved_once_its_workers_are_gone_and_before_its_coordinator():
    world = running()
    world.change(suspend=True)
    world.tick(5)
    assert not world.snapshots
    assert roles(world) == {"coordinator", "learner", "actor"}
    world.anchor(21, outcome={"kind": "Stopped", "reason": "Suspended", "message": "m"})
    for _ in range(8):
        world.tick(5)
    assert roles(world) == {"coordinator"}
    assert list(world.snapshots) == [name("suspend")]
    assert world.condition("Ready") == ("False", "Saving")
    assert world.condition("Reconciling") == ("True", "Saving")
    assert world.condition("SnapshotsScheduled") == ("False", "Saving")
    assert world.condition("Suspended") is None
    assert name("suspend") in world.message("Ready")
    assert "at the latest" in world.message("Ready")


def test_its_coordinator_goes_when_the_snapshot_is_durable():
    world = suspended()
    world.finish()
    world.settle(4)
    assert not roles(world)
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.condition("SnapshotsScheduled") == ("True", "SnapshotTaken")
    world.settle(4)
    assert list(world.snapshots) == [name("suspend")]


def test_one_that_a_person_deletes_afterwards_was_durable_all_the_same():
    world = suspended()
    world.finish()
    world.settle(4)
    world.snapshots.clear()
    world.settle(4)
    assert not world.snapshots
    assert world.condition("SnapshotsScheduled") == ("True", "SnapshotTaken")


def test_a_snapshot_that_fails_lets_the_run_go_and_is_told():
    world = suspended()
    world.finish("Failed", "NoSnapshotYet: nothing to save")
    world.settle(4)
    assert not roles(world)
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.condition("SnapshotsScheduled") == ("False", "SnapshotFailed")
    assert world.message("SnapshotsScheduled").endswith(
        "has failed: NoSnapshotYet: nothing to save"
    )


@pytest.mark.parametrize("refused", [False, True])
def test_nobody_waits_for_longer_than_the_bound(refused):
    world = running()
    if refused:
        world.unsaved = Blocked(reason=Reason.FORBIDDEN, message="may not create")
    world.change(suspend=True)
    world.tick(5)
    world.anchor(21, outcome={"kind": "Stopped", "reason": "Suspended", "message": "m"})
    world.settle(4)
    begun = world.now
    assert roles(world) == {"coordinator"}
    assert world.condition("SnapshotsScheduled")[1] == ("Forbidden" if refused else "Saving")
    while roles(world):
        assert (world.now - begun).total_seconds() < PARTING_SECONDS + 30
        plan = world.tick(20)
    assert (world.now - begun).total_seconds() > PARTING_SECONDS - 30
    assert plan.requeue_seconds is not None
    world.settle(4)
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.condition("SnapshotsScheduled") == ("False", "SnapshotFailed")


def test_an_operator_that_dies_again_and_again_makes_one_and_comes_to_the_same_end():
    world = suspended()
    for _ in range(5):
        world.tick(1, status=False)
    assert list(world.snapshots) == [name("suspend")]
    world.finish()
    world.tick(1, status=False)
    world.settle(4)
    assert world.condition("Suspended") == ("True", "Suspended")
    assert list(world.snapshots) == [name("suspend")]


def test_each_suspension_has_a_snapshot_of_its_own_and_the_newest_are_kept():
    world = running()
    for attempt in range(1, 6):
        world.change(suspend=True)
        world.tick(5)
        world.anchor(20 * attempt, outcome={"kind": "Stopped", "reason": "x", "message": "m"})
        for _ in range(8):
            world.tick(5)
            world.finish()
        world.change(suspend=False)
        world.settle(8)
        world.anchor(20 * attempt)
        world.settle(2)
    assert list(world.snapshots) == [name("suspend", one) for one in (3, 4, 5)]
    assert len(world.snapshots) == KEPT["suspend"]


def test_without_a_coordinator_nothing_is_waited_for():
    world = running()
    world.workloads = {
        role: (replace(one, replicas=0), attempt)
        for role, (one, attempt) in world.workloads.items()
    }
    world.pods.clear()
    world.change(suspend=True)
    world.settle(4)
    assert not world.snapshots
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.condition("SnapshotsScheduled") is None


@pytest.mark.parametrize("spec", [{"snapshots": {"everySteps": 20}}, {"storage": {}}])
def test_a_run_that_does_not_ask_for_it_or_keeps_its_objects_on_a_volume_goes_at_once(spec):
    world = suspended(**spec)
    world.settle(4)
    assert not world.snapshots
    assert world.condition("Suspended") == ("True", "Suspended")


def test_a_run_that_ends_well_is_saved_before_it_says_so():
    world = running()
    world.anchor(400, outcome=DONE)
    world.settle(3)
    assert list(world.snapshots) == [name("end")]
    assert world.condition("Finished") is None
    assert world.condition("Ready") == ("False", "Saving")
    assert roles(world) == {"coordinator", "learner", "actor"}
    world.finish()
    world.settle(8)
    assert world.condition("Finished") == ("True", "Succeeded")
    assert world.condition("SnapshotsScheduled") == ("True", "SnapshotTaken")
    assert list(world.snapshots) == [name("end")]
    assert not roles(world)


def test_a_last_snapshot_that_is_late_does_not_keep_a_run_from_its_end():
    world = running()
    world.anchor(400, outcome=DONE)
    for _ in range(PARTING_SECONDS // 20 + 4):
        world.tick(20)
    world.settle(4)
    assert world.condition("Finished") == ("True", "Succeeded")
    assert world.condition("SnapshotsScheduled") == ("False", "SnapshotFailed")
    assert f"not durable within {PARTING_SECONDS} s" in world.message("SnapshotsScheduled")


def test_a_run_that_fails_ends_at_once():
    world = running()
    world.anchor(40, outcome={"kind": "Failed", "reason": "Failed", "message": "m"})
    world.settle(4)
    assert not world.snapshots
    assert world.condition("Finished") == ("True", "Failed")

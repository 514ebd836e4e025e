"""``limits.ttlAction: DeleteRun``: the object goes last, and never where a tool would make it again."""

from dataclasses import replace
from datetime import timedelta

import pytest
from queues import QUOTA
from worlds import SPEC, World

from rollout_api.conditions import Reason
from rollout_api.fields.live import live_part
from rollout_api.fields.tracked import ANNOTATIONS, LABELS
from rollout_operator.cache.objects import parse_stored
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.plan import plan_run
from rollout_operator.run.plan.preconditions.checks import check_form

LIMITS = {"ttlSecondsAfterFinished": 100, "ttlAction": "DeleteRun"}
MARKS = [("annotations", key) for key in ANNOTATIONS] + [("labels", key) for key in LABELS]
REFUSED = Blocked(reason=Reason.FORBIDDEN, message="delete services x: 403 cannot delete")


def finished(limits=LIMITS, **world):
    made = World(spec={**SPEC, "limits": limits}, **world)
    made.settle()
    made.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    made.settle()
    return made


def over(**world):
    made = finished(**world)
    made.now += timedelta(seconds=101)
    return made


def live(**metadata):
    meta = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1", **metadata}
    spec = {**SPEC, "limits": LIMITS}
    kind = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    return parse_stored("RolloutRun", {**kind, "metadata": meta, "spec": spec})


def test_the_object_goes_after_its_children_and_no_sooner():
    world = over()
    first = world.tick()
    assert first.remove_children
    assert not first.delete_run
    second = world.tick()
    assert second.delete_run
    assert not second.remove_children


def test_it_stays_until_the_time_is_over():
    world = finished()
    world.settle()
    assert not world.deleted
    assert world.removed is False


def test_it_stays_when_nobody_asks_for_more():
    world = finished({"ttlSecondsAfterFinished": 100})
    world.now += timedelta(seconds=101)
    world.settle()
    assert world.removed
    assert not world.deleted


def test_a_run_without_children_is_looked_at_when_its_time_is_over():
    world = finished()
    world.records.clear()
    world.workloads.clear()
    wait = world.plan().requeue_seconds
    assert wait is not None
    world.now += timedelta(seconds=wait)
    assert world.plan().delete_run


def test_the_setting_may_be_changed_after_the_end():
    world = finished({"ttlSecondsAfterFinished": 100})
    world.now += timedelta(seconds=101)
    world.settle()
    world.change(limits=LIMITS)
    world.settle()
    assert world.deleted


@pytest.mark.parametrize("left", ["pods", "quota"])
def test_it_stays_while_anything_else_is_left(left):
    world = over()
    world.tick()
    found = {"pods": (World()._pod("run-learner-0", "learner", 1, 1),), "quota": QUOTA}
    observed = replace(world.observe(), **{left: found[left]})
    assert not plan_run(observed, world.now).delete_run
    assert world.plan().delete_run


@pytest.mark.parametrize("seen", [1, 4])
def test_a_tracked_run_loses_its_children_stays_and_says_why_once(seen):
    world = over(tracker="Flux keeps this object (label x: y)")
    for _ in range(seen):
        world.settle()
    assert world.removed
    assert not world.deleted
    assert world.condition("CleanedUp") == ("False", "ManagedByGitOps")
    assert "Flux keeps this object (label x: y)" in world.message("CleanedUp")
    assert world.condition("Ready") == ("True", "Succeeded")
    assert world.notes.count("ManagedByGitOps") == 1


def test_a_run_that_is_tracked_no_longer_goes():
    world = over(tracker="Helm keeps this object")
    world.settle()
    world.tracker = ""
    assert world.tick().delete_run


def test_what_keeps_a_finished_run_from_being_cleaned_up_is_said_and_taken_back():
    world = over()
    world.blocked = REFUSED
    plan = world.plan()
    said = {one["type"]: one for one in plan.status["conditions"]}
    assert (said["CleanedUp"]["status"], said["CleanedUp"]["reason"]) == ("False", "Forbidden")
    assert "cannot delete" in said["CleanedUp"]["message"]
    assert said["Finished"]["reason"] == "Succeeded"
    assert [(note.type, note.reason) for note in plan.notes] == [("Warning", Reason.FORBIDDEN)]
    world.status = {**plan.status}
    assert world.plan().status is None
    world.blocked = None
    kinds = {one["type"] for one in world.plan().status["conditions"]}
    assert "CleanedUp" not in kinds


@pytest.mark.parametrize(("place", "key"), MARKS)
def test_every_mark_of_a_tool_is_read_from_the_object(place, key):
    stored = live(**{place: {key: "mine", "example.com/other": "x"}})
    assert key in stored.tracker()
    assert "mine" in stored.tracker()
    assert "example.com" not in stored.tracker()


def test_an_object_without_marks_has_no_tracker_and_its_annotations_are_not_kept():
    stored = live(annotations={"kubectl.kubernetes.io/last-applied-configuration": "{...}"})
    assert stored.tracker() == ""
    assert b"last-applied" not in stored.meta


def test_a_mark_that_comes_while_a_run_works_does_not_stop_it():
    stored = live(labels={"helm.toolkit.fluxcd.io/name": "mine"})
    assert check_form(stored.document()) is None


def test_what_the_operator_alone_acts_on_is_not_sent_to_the_coordinator():
    spec = finished().observe().spec
    sent = live_part(spec).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert "ttlAction" not in sent["limits"]
    assert sent["limits"]["ttlSecondsAfterFinished"] == 100

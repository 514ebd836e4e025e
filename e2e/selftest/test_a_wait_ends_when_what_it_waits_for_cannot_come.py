"""A wait ends at once, with the reason, when what it waits for cannot come; a wait of minutes would say less."""

import pytest

from terminal import why_of_pods, why_of_run
from waiting import wait_until

PULL_FAILED = {"type": "Stalled", "status": "True", "reason": "ImagePullFailed", "message": "x:1"}


def build_pod(reason: str, *, init: bool = False) -> dict:
    state = {"waiting": {"reason": reason, "message": "not present"}} if reason else {"running": {}}
    kind = "initContainerStatuses" if init else "containerStatuses"
    return {
        "metadata": {"name": "learner-0"},
        "spec": {"nodeName": "node-2"},
        "status": {kind: [{"name": "learner", "state": state}]},
    }


def test_a_pod_whose_image_is_nowhere_is_hopeless_and_says_where_it_is():
    why = why_of_pods([build_pod(""), build_pod("ErrImageNeverPull")])
    assert why == "learner-0 on node-2, container learner: ErrImageNeverPull: not present"
    assert why_of_pods([build_pod("ImagePullBackOff", init=True)])


def test_pods_that_may_still_come_up_are_not():
    assert why_of_pods([{"metadata": {"name": "new"}, "spec": {}}]) == ""
    assert why_of_pods([build_pod("ContainerCreating"), build_pod("CrashLoopBackOff")]) == ""


def test_a_run_that_is_stalled_for_an_image_is_hopeless():
    assert why_of_run({"conditions": [PULL_FAILED]}) == "Stalled=ImagePullFailed: x:1"


def test_a_run_whose_spec_is_refused_is_hopeless():
    refused = {**PULL_FAILED, "reason": "InvalidSpec", "message": "spec.train: no such thing"}
    assert why_of_run({"conditions": [refused]}) == "Stalled=InvalidSpec: spec.train: no such thing"


def test_a_run_that_goes_on_by_itself_is_not():
    assert why_of_run({}) == ""
    assert why_of_run({"conditions": [{**PULL_FAILED, "status": "False"}]}) == ""
    assert why_of_run({"conditions": [{**PULL_FAILED, "reason": "Unschedulable"}]}) == ""


def test_a_wait_without_hope_does_not_wait():
    asked = []
    with pytest.raises(AssertionError, match="a first step: it will not come: no image"):
        wait_until(lambda: asked.append(1), "a first step", 3600, hopeless=lambda: "no image")
    assert asked == [1]


def test_a_wait_that_is_over_tells_its_last_answer():
    with pytest.raises(AssertionError, match="the pods: not within 0 s; last answer: \\[\\]"):
        wait_until(list, "the pods", 0)


def test_what_has_come_is_not_hopeless():
    assert wait_until(lambda: "here", "it", hopeless=lambda: "no image") == "here"

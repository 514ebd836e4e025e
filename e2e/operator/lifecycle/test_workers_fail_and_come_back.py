"""On the real StatefulSet controller: a group restarts whole, an actor alone, bad input ends the run."""

import time

import pytest
from clocks import STAMP_SECONDS, seconds_of
from operators import eventually

pytestmark = pytest.mark.process

TWO = {"learner": {"nodes": 2}}


def incarnations(world):
    pods = world.kubectl.get("pods", "-l", "rollout.dev/role=learner")["items"]
    return {one["metadata"]["labels"]["rollout.dev/incarnation"] for one in pods}


def test_a_failed_rank_restarts_its_group_and_nobody_else(world):
    world.apply(spec=TWO)
    world.wait_for("Ready", "True", "Running")
    learners, actors = world.pod_uids("learner"), world.pod_uids("actor")

    world.puppets.fail("arithmetic-learner-1", "learner", 1, "boom")
    eventually(lambda: incarnations(world) == {"2"}, "the group did not start anew")
    world.wait_for("LearnerReady", "True")

    assert not learners & world.pod_uids("learner")
    assert len(world.pod_uids("learner")) == 2
    assert world.pod_uids("actor") == actors
    assert world.run()["status"]["learner"]["restarts"] == 1


def test_a_deleted_learner_pod_costs_no_retry(world):
    world.apply(spec={**TWO, "limits": {"retries": 0}})
    world.wait_for("Ready", "True", "Running")
    ready = seconds_of(world.condition("LearnerReady")["lastTransitionTime"])
    eventually(lambda: time.time() >= ready + STAMP_SECONDS, "the next second's stamp")
    world.kubectl("delete", "pod", "arithmetic-learner-0", "--wait=false")
    eventually(lambda: incarnations(world) == {"2"}, "the group did not start anew")
    world.wait_for("LearnerReady", "True")
    assert world.condition("Finished") == {}
    learner = world.kubectl.get("statefulset", "arithmetic-learner")
    assert learner["metadata"]["annotations"]["rollout.dev/disruptions"] == "1"


def test_bad_input_ends_the_run_and_its_pods(world):
    world.apply()
    world.wait_for("Ready", "True", "Running")
    world.puppets.fail("arithmetic-coordinator-0", "coordinator", 2, "error: no such model")
    finished = world.wait_for("Finished", "True", "Failed")
    assert "no such model" in finished["message"]
    world.wait_for("Stalled", "True", "InvalidSpec")
    eventually(lambda: not world.kubectl.get("pods")["items"], "pods of a failed run are left")


def test_an_incomplete_group_gives_everything_back_and_tries_again(world):
    world.puppets.keep_back("learner")
    world.apply(spec={**TWO, "limits": {"gangSeconds": 5}})
    world.wait_for("Ready", "False", "GangIncomplete")
    eventually(lambda: not world.kubectl.get("pods")["items"], "pods of a held run are left")
    assert set(world.replicas().values()) == {0}


def test_a_run_ends_on_time_and_its_children_go_after_their_time(world):
    limits = {"activeSeconds": 8, "noProgressSeconds": 5, "ttlSecondsAfterFinished": 5}
    world.apply(spec={"limits": limits})
    world.wait_for("Stalled", "True", "ActiveSecondsExceeded")

    def nothing_left():
        return not world.kubectl.get("statefulsets,services,secrets,configmaps", "-l", MINE)[
            "items"
        ]

    eventually(nothing_left, "children outlived their time")
    assert world.condition("Finished")["reason"] == "Failed"


MINE = "rollout.dev/run=arithmetic"

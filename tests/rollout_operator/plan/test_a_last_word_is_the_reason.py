"""A worker that cannot be leaves ``Kind: message`` as its container's last word; the kind is the run's reason."""

import pytest
from worlds import World

from rollout_operator.cache.children import parse_pod

FIRST_PODS = ("run-coordinator-0", "run-learner-0", "run-actors-0")


def ended(pod, word, code=2):
    world = World()
    world.settle()
    world.crash(pod, code, word)
    world.tick()
    return world


@pytest.mark.parametrize("pod", FIRST_PODS)
@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("ModelNotFound: model hf://a/b: no such repository", "ModelNotFound"),
        ("DataNotFound: data file /rows.jsonl does not exist", "DataNotFound"),
        ("DataError: /rows.jsonl:3 not JSON", "BadRecord"),
        ("SpecError: train.sampling: lower it", "InvalidSpec"),
        ("2030-01-01 INFO child ended module=x code=2", "InvalidSpec"),
        ("", "InvalidSpec"),
    ],
)
def test_what_no_restart_would_change_ends_the_run_at_once(pod, word, reason):
    world = ended(pod, word)
    assert world.condition("Stalled") == ("True", reason)
    assert world.condition("Finished") == ("True", "Failed")
    message = next(c["message"] for c in world.status["conditions"] if c["type"] == "Finished")
    assert pod in message
    assert word in message


@pytest.mark.parametrize("pod", FIRST_PODS)
def test_a_word_beside_another_exit_code_ends_nothing(pod):
    world = ended(pod, "ModelNotFound: this container was killed before it could try", code=137)
    assert world.condition("Finished") is None


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("ModelNotFound", "ModelNotFound"),
        ("DataNotFound", "DataNotFound"),
        ("DataError", "BadRecord"),
        ("PlaceUnreachable", "StorageUnreachable"),
        ("ObjectMissing", "StorageUnreachable"),
        ("ZeroDivisionError", "Failed"),
    ],
)
def test_what_a_worker_told_the_coordinator_is_translated_alike(word, reason):
    world = World()
    world.settle()
    world.report(step=1, outcome={"kind": "Failed", "reason": word, "message": "m"})
    world.settle()
    assert world.condition("Finished") == ("True", "Failed")
    assert reason in {one["reason"] for one in world.status["conditions"]}


def test_the_coordinators_word_counts_and_not_that_of_what_stands_beside_it():
    def died(name, code, word):
        return {"name": name, "lastState": {"terminated": {"exitCode": code, "message": word}}}

    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "run-coordinator"}
    pod = {
        "metadata": {
            "namespace": "ns",
            "name": "run-coordinator-0",
            "uid": "u",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"rollout.dev/run-uid": "uid-0001"},
            "ownerReferences": [{**owner, "uid": "set", "controller": True}],
        },
        "status": {
            "initContainerStatuses": [died("rows", 137, "")],
            "containerStatuses": [died("coordinator", 2, "SpecError: lower it")],
        },
    }
    found = parse_pod(pod)
    assert found is not None and found.ended is not None
    assert (found.ended.container, found.ended.exit_code) == ("coordinator", 2)

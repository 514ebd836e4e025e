"""What people and pipelines do with kubectl alone: wait for a run, look at it, delete it and keep its children."""

import pytest
from operators import eventually

pytestmark = pytest.mark.process

SUCCEEDED = '{.status.conditions[?(@.type=="Finished")].reason}'
MINE = ("-l", "rollout.dev/run=arithmetic")


def test_waits_end_when_the_run_has_succeeded(world):
    world.apply()
    world.kubectl.wait("--for=condition=Ready", "rrun/arithmetic")
    world.succeed()
    world.kubectl.wait("--for=condition=Finished", "rrun/arithmetic")
    world.kubectl.wait("--for=condition=Complete", "rrun/arithmetic")
    world.kubectl.wait(f"--for=jsonpath={SUCCEEDED}=Succeeded", "rrun/arithmetic")
    world.kubectl.wait("--for=condition=Ready", "rrun/arithmetic")
    row = world.kubectl("get", "rrun", "arithmetic", "--no-headers").split()
    assert row[:4] == ["arithmetic", "True", "Succeeded", "400"]


def test_a_row_shows_what_is_there_of_what_is_wanted(world):
    world.puppets.keep_back("learner")
    world.apply(spec={"actors": {"replicas": 3}, "learner": {"nodes": 2}})
    eventually(
        lambda: world.replicas().get("arithmetic-learner") == 2, "the learner was not let go"
    )
    assert counts(world) == (["0", "3"], ["0", "2"])
    world.puppets.keep_back()
    world.wait_for("Ready", "True")

    everybody = (["3", "3"], ["2", "2"])
    eventually(lambda: counts(world) == everybody, "the row does not show all workers")


def counts(world):
    """Workers that are ready and those wanted, of actors and of learners, as a wide row shows them."""
    head, row = world.kubectl("get", "rrun", "arithmetic", "-o", "wide").splitlines()
    columns = [(role, f"{role}-WANTED") for role in ("ACTORS", "LEARNERS")]
    return tuple([row[head.index(name) :].split()[0] for name in pair] for pair in columns)


def test_children_may_be_kept_as_orphans(world):
    world.apply()
    world.wait_for("Ready", "True")
    world.kubectl("delete", "rrun", "arithmetic", "--cascade=orphan", "--timeout=20s")
    kept = world.kubectl.get("statefulsets", *MINE)["items"]
    assert len(kept) == 3
    assert not any(one["metadata"].get("ownerReferences") for one in kept)


def test_a_bad_image_is_named_and_mended_without_deleting_a_pod(world):
    world.puppets.keep_back("actor")
    world.apply()
    eventually(lambda: world.pod_uids("actor"), "no actor was made")
    world.puppets.stall("arithmetic-actors-0", "ImagePullBackOff", "no such image: vllm:typo")
    stalled = world.wait_for("Stalled", "True", "ImagePullFailed")
    assert "arithmetic-actors-0" in stalled["message"]
    assert "no such image" in stalled["message"]

    world.patch({"suspend": True})
    world.wait_for("Suspended", "True")
    world.puppets.keep_back()
    image = {"actors": {"engine": {"vllm": {"image": "registry.example/good:1"}}}}
    world.patch({"suspend": False, **image})
    world.wait_for("Ready", "True", "Running")

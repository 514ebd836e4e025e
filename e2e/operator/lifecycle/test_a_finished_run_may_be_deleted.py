"""``limits.ttlAction: DeleteRun``: the object goes after its children, and stays where a tool tracks it."""

import pytest
from operators import eventually

from runs import build_run

pytestmark = pytest.mark.process

LIMITS = {"ttlSecondsAfterFinished": 1, "ttlAction": "DeleteRun"}
CHILDREN = "statefulsets,services,secrets,configmaps,rolebindings,poddisruptionbudgets,pods"


def finish(world, name="arithmetic", **metadata):
    run = build_run(name, {"limits": LIMITS})
    world.kubectl.apply({**run, "metadata": {**run["metadata"], **metadata}})
    world.wait_for("Ready", "True", "Running", name)
    world.succeed(name)


def runs(world):
    return {one["metadata"]["name"] for one in world.kubectl.get("rolloutruns")["items"]}


def children(world, name="arithmetic"):
    return world.kubectl.get(CHILDREN, "-l", f"rollout.dev/run={name}")["items"]


def test_a_run_that_asks_for_it_is_deleted_with_all_that_it_had(world):
    finish(world)
    eventually(lambda: "arithmetic" not in runs(world), "the finished run is still there")
    eventually(lambda: not children(world), "the run is gone and something of it is left")


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"argocd.argoproj.io/tracking-id": "research:rollout.dev/RolloutRun"}},
        {"labels": {"kustomize.toolkit.fluxcd.io/name": "research"}},
    ],
    ids=["Argo CD", "Flux"],
)
def test_a_run_that_stands_in_git_loses_its_children_stays_and_says_why(world, metadata):
    finish(world, **metadata)
    said = world.wait_for("CleanedUp", "False", "ManagedByGitOps")
    assert next(iter(next(iter(metadata.values())))) in said["message"]
    eventually(lambda: not children(world), "children outlived their time")
    assert runs(world) == {"arithmetic"}
    assert world.condition("Finished")["reason"] == "Succeeded"
    events = world.kubectl.get("events", "--field-selector=reason=ManagedByGitOps")["items"]
    assert [one["type"] for one in events] == ["Warning"]

    (place, marks), *_ = metadata.items()
    mark = f"{next(iter(marks))}-"
    world.kubectl("label" if place == "labels" else "annotate", "rolloutrun", "arithmetic", mark)
    eventually(lambda: not runs(world), "the run is tracked no longer and still there")
